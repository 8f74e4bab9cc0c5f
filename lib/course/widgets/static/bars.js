// Bars of what a GPU holds, with sliders: the state of a model, the peak of a step, a grid of GPUs,
// a plan.
(() => {
  "use strict";
  const { state } = globalThis.minidistModules["minidist.formulas.memory"];
  const {
    advised, alone, dimensions, largest, planned, shape, total: sum, whole,
  } = globalThis.minidistModules["course.widgets.in_page"];
  const { mfu } = globalThis.minidistModules["minidist.formulas.step"];
  const { of_split } = globalThis.minidistModules["minidist.formulas.refusals"];
  const { svg, text, line, rect, bytesText, secondsText, countText, capital, listed, word, show } = globalThis.minidistSliders;

  const STATE = { weights: "parameters", gradients: "gradients", optimizer: "optimizer state" };
  const PARTS = { ...STATE, activations: "activations" };
  const ALL = { ...PARTS, unsharded: "unsharded" };
  const many = (count) => count.toLocaleString("en");

  // Stacked bars with a mark at what a GPU has; rows: [name, bytes of each part].
  function stacked(rows, limit, width, figure, left) {
    const most = Math.max(...rows.map(([, parts]) => sum(parts)));
    const wide = most < limit / 8 ? most * 1.05 || 1 : Math.min(Math.max(most, limit) * 1.05, limit * 4);
    const [right, row, top] = [width - 12, 46, 26];
    const height = top + rows.length * row;
    const x = (nbytes) => left + (Math.min(nbytes, wide) / wide) * (right - left);
    const nodes = rows.flatMap(([name, parts], index) => {
      const [y, total] = [top + index * row, sum(parts)];
      let from = 0;
      const bars = Object.entries(parts).flatMap(([part, nbytes]) => {
        const [start, end] = [x(from), x((from += nbytes))];
        return ["fill", "hatch"].map((kind) =>
          svg("rect", {
            x: start, y, width: Math.max(0, end - start), height: 20, class: `${kind} ${part}`,
            ...(kind === "hatch" && { style: `fill: url(#${figure}-${part})` }),
          }),
        );
      });
      const cut = total > wide ? [svg("path", { class: "cut", d: `M${right} ${y - 2}l-6 8 6 8-6 8` })] : [];
      const label = total > wide ? `${bytesText(total)}, off the scale` : bytesText(total);
      const fits = x(total) + 8 * label.length < right;
      let place = fits ? [x(total) + 5, y + 15, ""] : [right, y + 35, "end"];
      const [long, mark] = [7.4 * label.length, x(limit)]; // no text on the mark
      if (fits && limit <= wide && place[0] < mark + 4 && place[0] + long > mark - 4) {
        place = mark + 6 + long < right ? [mark + 6, y + 15, ""] : [right, y + 35, "end"];
      }
      const [at, height_, kind] = place;
      return [text(0, y + 15, name, "strong"), ...bars, ...cut, text(at, height_, label, kind)];
    });
    const marks = limit <= wide
      ? markAt(x(limit), rows.map((_, index) => top + index * row), `${bytesText(limit)} of one GPU`, width)
      : [text(right, 12, `${bytesText(limit)} is far off to the right`, "end")];
    const patterns = Object.keys(ALL).map((part) => patternOf(figure, part));
    return { height, nodes: [svg("defs", {}, ...patterns), ...nodes, ...marks] };
  }

  // A dashed line beside each bar, but not through the words between them, and its name on top.
  function markAt(x, bars, name, width) {
    const half = 3.8 * name.length;
    const lines = bars.map((y) => line(x, y - 6, x, y + 24, "limit"));
    return [...lines, text(Math.min(Math.max(x, half), width - half), 12, name, "middle")];
  }

  // Hatches, as in the book's figures, so that parts differ without their colours too.
  function patternOf(figure, part) {
    const attributes = { id: `${figure}-${part}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" };
    const stroke = (d) => [svg("path", { class: "stroke", d })];
    const rising = "M-1 7L7-1M-1 1L1-1M5 7L7 5";
    const shapes = {
      weights: [],
      gradients: stroke(rising),
      optimizer: [svg("circle", { class: "dot", cx: 3, cy: 3, r: 1.1 })],
      unsharded: stroke("M-1-1L7 7M5-1L7 1M-1 5L1 7"),
      activations: stroke(`${rising}M-1-1L7 7M5-1L7 1M-1 5L1 7`),
    };
    return svg("pattern", attributes, ...shapes[part]);
  }

  // ---- the state of a model, per rank ----

  function drawState({ parameters, ranks = 1, policy }, data, width, figure) {
    const held = data.stages.map((_, stage) => state(parameters, data.each[policy], ranks, stage));
    const [most, limit] = [Math.max(...held.map(({ total }) => total)), data.limit];
    const rows = held.map(({ weights, gradients, total }, stage) =>
      [data.stages[stage], { weights, gradients, optimizer: total - weights - gradients }]);
    const fits = data.stages.filter((_, stage) => held[stage].total <= limit);
    const what = `${bytesText(limit)}`;
    const says = !parameters
      ? "A model without parameters has no state: 0 bytes."
      : held.length === 1
        ? `${bytesText(most)}: that ${most <= limit ? "fits" : "does not fit"} into ${what}` +
          (most <= limit ? ", as long as activations find room beside it." : ".")
      : ranks === 1
        ? `With one rank there is nobody to share with: every strategy holds ${bytesText(most)}.`
        : fits.length === held.length
          ? `All four fit into ${what}; ZeRO-3 takes ${bytesText(held[3].total)} where DDP takes ${bytesText(held[0].total)}.`
          : fits.length
            ? `DDP would need ${bytesText(held[0].total)} on every rank. ${listed(fits)} ${fits.length > 1 ? "fit" : "fits"} into ${what}.`
            : `None fits into ${what}: even ZeRO-3 needs ${bytesText(held[3].total)} on each rank.`;
    return { ...stacked(rows, limit, width, figure, 58), says, legend: STATE };
  }

  // ---- the peak of a step on one GPU ----

  const blocksOf = (model) => (model.length > 1 ? model : shape(model[0]));
  const plural = (count, one) => `${many(count)} ${one}${count > 1 ? "s" : ""}`;

  function drawPeak({ model, batch, tokens, policy, checkpoints, memory }, data, width, figure) {
    if (!model[0]) return word("A model without parameters has nothing to train, and holds 0 bytes.");
    const [blocks, wide] = blocksOf(model);
    const room = data.room * memory;
    const { peak, moments, memory: held, largest_batch: most } =
      alone(model, tokens, data.gpu, data.each[policy], batch, data.shares[checkpoints], room);
    const bars = [["backward begins", moments[0]], ["in the update", moments[1]]];
    const what = `${bytesText(room)}, ${100 * data.room}% of the GPU`;
    const when = sum(moments[0]) > sum(moments[1]) ? "when backward begins" : "in the update";
    const says = `${plural(blocks, "block")}, ${many(wide)} wide. ` +
      `The peak is ${bytesText(peak)}, ${when}. ` +
      (sum(moments[1]) > room
        ? `The state alone does not fit into ${what}, however small the batch.`
        : most < 1
          ? `Not even one sequence fits into ${what}.`
          : `${peak > room ? "Only" : "Up to"} ${plural(most, "sequence")} ${most > 1 ? "fit" : "fits"} into ${what}.`);
    const legend = { ...PARTS, unsharded: "temporary copies" };
    return { ...stacked(bars, memory, width, figure, 112), says, legend };
  }

  // ---- a grid of GPUs ----

  // Why there is no such grid, in a sentence.
  function unlike({ model, gpus, tensor, pipeline, interleaved, sequences, strategy }, { length, names }) {
    const replicas = gpus / (tensor * pipeline);
    const [own, stages] = pipeline > 1 ? [sequences / replicas, interleaved] : [1, 1];
    if (replicas > sequences) return `${many(replicas)} replicas, but only ${plural(sequences, "sequence")} in a batch: ${many(replicas - sequences)} replicas would have nothing to do.`;
    if (pipeline > 1 && strategy.startsWith("fsdp")) return `${names[strategy]} would gather the weights for each micro-batch of a pipeline again: take ZeRO.`;
    return of_split(whole(model, length), gpus, tensor, pipeline, own, stages);
  }

  function drawGrid(values, data, width, figure) {
    const { model, gpus, tensor, pipeline, interleaved, sequences, strategy, checkpoints } = values;
    if (!model[0]) return word("A model without parameters has nothing to hold and nothing to send.");
    const why = unlike(values, data);
    if (why) return word(`${capital(why)}.`.replace("..", "."));
    const replicas = gpus / (tensor * pipeline);
    const own = sequences / replicas;
    const [batch, split] = pipeline > 1 ? [1, [tensor, pipeline, own, interleaved]] : [own, [tensor, 1, 1, 1]];
    const limit = data.room * data.gpu.memory;
    const again = data.shares[checkpoints];
    const found = planned(model, data.length, data.gpu, data.each, gpus, batch, again, limit, split, strategy);
    const { peak, fits, overlapped: step } = found[strategy];
    const { sent, seconds } = dimensions(found, strategy);
    const bars = stacked([["holds", largest(found[strategy].memory)]], limit, width, figure, 58);
    const ranks = { data: replicas, tensor, pipeline };
    const [left, right, row, top] = [2, width - 14, 40, bars.height + 8];
    const longest = Math.max(...Object.values(seconds));
    const lanes = ["compute", "bubble", "data", "tensor", "pipeline"].flatMap((kind, index) => {
      const [y, count, takes] = [top + index * row, ranks[kind], seconds[kind] ?? 0];
      const words = count === undefined ? secondsText(takes)
        : count === 1 ? "nothing to send"
          : `sends ${bytesText(sent[kind])}, ${kind === "pipeline" ? "while it computes" : secondsText(takes)}`;
      const head = svg("tspan", { class: "strong" }, count ? `${kind} ${many(count)}` : kind);
      return [
        svg("text", { x: left, y: y + 14 }, head, ` · ${words}`),
        rect(left, y + 20, Math.max((takes / longest) * (right - left), takes ? 0.5 : 0), 12, `phase ${count ? "communication" : kind}`),
      ];
    });
    const slow = seconds.tensor > seconds.data ? "tensor" : "data";
    const percent = (part, whole) => `${Math.round((100 * part) / whole)}%`;
    const says = `${plural(replicas, "replica")} of ${plural(tensor * pipeline, "GPU")}, ${plural(own, "sequence")} each. ` +
      `The peak of ${bytesText(peak)} ${fits ? "fits" : "does not fit"} into ${bytesText(limit)}. ` +
      (replicas === 1 && tensor === 1 ? "No replica and no layer sends anything. "
        : seconds[slow] > seconds.compute ? `The ${slow} traffic takes longer than compute. `
          : `The ${slow} traffic takes longest, ${percent(seconds[slow], seconds.compute)} of compute. `) +
      (pipeline > 1 ? `The bubble is ${percent(seconds.bubble, step)} of the time. ` : "") +
      `A step takes ${secondsText(step)}.`;
    return { height: top + 5 * row, nodes: [...bars.nodes, ...lanes], says, legend: { ...ALL, unsharded: "temporary" } };
  }

  // ---- a plan: each strategy in turn, the simplest first ----

  const SHORT = { fsdp_kept: "FSDP kept" }; // beside a bar
  const share = (part, whole) => `${Math.round((100 * part) / whole)}%`;

  function drawPlan({ model, ranks, batch, tokens, gpu, card, policy, checkpoints, shown }, data, width, figure) {
    const hardware = { ...data.gpus[gpu], network: card };
    const limit = data.room * hardware.memory;
    const again = data.shares[checkpoints];
    const found = planned(model, tokens, hardware, data.each[policy], ranks, batch, again, limit, [1, 1, 1, 1]);
    const [run, names] = [advised(found, 1, limit, data.close), Object.keys(found)];
    const fastest = Math.max(...names.map((name) => (found[name].fits ? found[name].tokens_per_second : 0)));
    const bars = stacked(
      names.map((name) => [SHORT[name] ?? data.names[name], largest(found[name].memory)]), limit, width, figure, 78);
    const answers = names.map((name, row) => {
      const { fits, tokens_per_second: rate } = found[name];
      const words = fits
        ? `${many(Math.round(rate))} tokens/s (${share(rate, fastest)})`
        : "does not fit";
      return text(78, 26 + row * 46 + 34, name === run ? `${words}: run this` : words, name === run ? "strong small" : "small");
    });
    const of = found[shown] ? shown : run || names.at(-1);
    const one = found[of];
    const lanes = [
      ["compute", one.compute, "compute"],
      ["memory traffic", one.memory_traffic, "compute"],
      ["network", one.communication, "communication"],
      ["a step, with overlap", one.overlapped, "backward"],
      ["a step, without overlap", one.sequential, "bubble"],
    ];
    const [top, left, right] = [bars.height + 44, 2, width - 14];
    const times = lanes.flatMap(([name, seconds, kind], row) => [
      svg("text", { x: left, y: top + row * 36 }, svg("tspan", { class: "strong" }, name), ` · ${secondsText(seconds)}`),
      rect(left, top + row * 36 + 7, Math.max(0.5, (seconds / one.sequential) * (right - left)), 12, `phase ${kind}`),
    ]);
    const head = text(left, bars.height + 18, `${data.names[of]}, with ${countText(batch * tokens)} tokens on a GPU:`);
    return { height: top + 5 * 36, nodes: [...bars.nodes, ...answers, head, ...times], says: planSays(found, run, limit, hardware, batch, data.names), legend: { ...ALL, unsharded: "temporary" } };
  }

  function planSays(found, run, limit, gpu, batch, names) {
    const room = bytesText(limit);
    if (!run) {
      const least = Object.keys(found).reduce((a, b) => (found[b].peak < found[a].peak ? b : a));
      const { peak, memory: { activations } } = found[least];
      const help = activations / batch > limit
        ? "The activations of one sequence alone are too much: set checkpoints, or split the sequence."
        : activations > gpu.memory / 2 ? "Take fewer sequences, or set checkpoints." : "Take more GPUs.";
      return `Nothing fits: ${names[least]} needs least, ${bytesText(peak)} of ${room}. ${help}`;
    }
    const { step, largest_batch: most, compute, memory_traffic: memory, communication, overlapped } = found[run];
    const times = { Compute: compute, "Memory bandwidth": memory, "The network": communication };
    const binds = Object.keys(times).reduce((a, b) => (times[b] > times[a] ? b : a));
    return `Run ${names[run]}: the simplest that fits into ${room} and reaches 95% of the fastest. ` +
      `Up to ${plural(most, "sequence")} ${most > 1 ? "fit" : "fits"} on a GPU. ` +
      `${binds} binds, and the step reaches ${Math.round(100 * mfu(step, overlapped))}% of the peak (MFU).`;
  }

  show({ state: drawState, peak: drawPeak, grid: drawGrid, plan: drawPlan });
})();
