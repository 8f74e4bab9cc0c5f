// Bars of what a GPU holds, with sliders: the state of a model, the peak of a step, a grid of GPUs,
// a plan.
(() => {
  "use strict";
  const { stateBytes, peakBytes, gridStep, plan, recommended } = globalThis.minidistFormulas;
  const { svg, text, line, rect, bytesText, secondsText, countText, listed, word, show } = globalThis.minidistSliders;

  const STATE = { weights: "parameters", gradients: "gradients", optimizer: "optimizer state" };
  const PARTS = { ...STATE, activations: "activations" };
  const ALL = { ...PARTS, unsharded: "unsharded" };
  const sum = (parts) => Object.values(parts).reduce((all, each) => all + each, 0);
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

  const only = (held) => Object.fromEntries(Object.keys(STATE).map((part) => [part, held[part]]));

  // ---- the state of a model, per rank ----

  function drawState({ parameters, ranks = 1, policy }, data, width, figure) {
    const held = data.stages.map((_, stage) => stateBytes(parameters, data.each[policy], ranks, stage));
    const [most, limit] = [Math.max(...held.map(({ total }) => total)), data.limit];
    const rows = held.map((each, stage) => [data.stages[stage], only(each)]);
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

  function drawPeak({ parameters, sequences, length, policy, checkpoints, limit }, data, width, figure) {
    if (!parameters) return word("A model without parameters has nothing to train, and holds 0 bytes.");
    const shape = data.shapes[parameters];
    const at = (count) => peakBytes(parameters, shape, data.each[policy], count * length, checkpoints === "every block");
    const { weights, gradients, optimizer, activations, cast, update, peak } = at(sequences);
    const bars = [
      ["after forward", { weights, optimizer, activations, unsharded: cast }],
      ["in the update", { weights, optimizer, gradients, unsharded: update }],
    ];
    const room = data.room * limit;
    const least = weights + optimizer + gradients + update;
    const most = Math.floor((room - weights - optimizer - cast) / at(1).activations);
    const what = `${bytesText(room)}, ${100 * data.room}% of the GPU`;
    const when = activations + cast > gradients + update ? "when backward begins" : "in the update";
    const says = `${shape[0]} block${shape[0] > 1 ? "s" : ""}, ${many(Math.round(shape[1]))} wide. ` +
      `The peak is ${bytesText(peak)}, ${when}. ` +
      (least > room
        ? `The state alone does not fit into ${what}, however small the batch.`
        : most < 1
          ? `Not even one sequence fits into ${what}.`
          : `${peak > room ? "Only" : "Up to"} ${many(most)} sequence${most > 1 ? "s fit" : " fits"} into ${what}.`);
    const legend = { ...PARTS, unsharded: "temporary copies" };
    return { ...stacked(bars, limit, width, figure, 112), says, legend };
  }

  // ---- a grid of GPUs ----

  const LINES = {
    compute: "compute", bubble: "bubble", data: "data", tensor: "tensor", pipeline: "pipeline",
  };

  function drawGrid({ parameters, gpus, tensor, pipeline, chunks, sequences, stage }, data, width, figure) {
    const blocks = data.shapes[parameters][0];
    const group = tensor * pipeline;
    if (!parameters) return word("A model without parameters has nothing to hold and nothing to send.");
    if (group > gpus) return word(`One replica takes ${tensor} × ${pipeline} = ${many(group)} GPUs, and there are only ${many(gpus)}.`);
    const pieces = pipeline > 1 ? pipeline * chunks : 1; // embedding and head may stand for blocks
    if (pieces > blocks + 2) return word(`A model of ${blocks} block${blocks > 1 ? "s" : ""} cannot be split into ${pieces} pieces.`);
    const replicas = gpus / group;
    if (replicas > sequences) return word(`${many(replicas)} replicas, but only ${many(sequences)} sequence${sequences > 1 ? "s" : ""} in a batch: ${many(replicas - sequences)} replicas would have nothing to do.`);
    const places = [gpus, tensor, pipeline, chunks];
    const { held, sent, seconds, step, micro } = gridStep(
      parameters, data.shapes[parameters], data.each, data.stages.indexOf(stage), places,
      [sequences, data.length], { ...data.gpu, flops: data.flops[parameters] });
    const bars = stacked([["holds", only(held)]], data.gpu.memory, width, figure, 58);
    const [left, right, row, top] = [2, width - 14, 40, bars.height + 8];
    const longest = Math.max(...Object.values(seconds));
    const lanes = Object.entries(LINES).flatMap(([kind, name], index) => {
      const y = top + index * row;
      const ranks = { data: replicas, tensor, pipeline }[kind];
      const words = ranks === undefined ? secondsText(seconds[kind])
        : ranks === 1 ? "nothing to send"
          : `sends ${bytesText(sent[kind])}, ${secondsText(seconds[kind])}`;
      const head = svg("tspan", { class: "strong" }, ranks ? `${name} ${many(ranks)}` : name);
      const wide = (seconds[kind] / longest) * (right - left);
      return [
        svg("text", { x: left, y: y + 14 }, head, ` · ${words}`),
        rect(left, y + 20, Math.max(wide, seconds[kind] ? 0.5 : 0), 12, `phase ${kind in sent ? "communication" : kind}`),
      ];
    });
    const limit = bytesText(data.gpu.memory);
    const names = Object.keys(sent);
    const slow = names.reduce((one, other) => (seconds[other] > seconds[one] ? other : one));
    const lost = Math.round((100 * seconds.bubble) / step);
    const says = `${many(replicas)} replica${replicas > 1 ? "s" : ""} of ${many(group)} GPU${group > 1 ? "s" : ""}, ` +
      `${many(micro)} sequence${micro > 1 ? "s" : ""} each. ` +
      `State of ${bytesText(held.total)} ${held.total > data.gpu.memory ? "does not fit" : "fits"} into ${limit}. ` +
      (gpus === 1 ? "One GPU has nobody to send to. "
        : seconds[slow] > seconds.compute ? `The ${slow} traffic takes longer than compute. `
          : `The ${slow} traffic takes longest, ${Math.round((100 * seconds[slow]) / seconds.compute)}% of compute. `) +
      (pipeline > 1 ? `The bubble is ${lost}% of the time. ` : "") +
      `With what nothing hides, a step takes ${secondsText(step)}.`;
    return { height: top + 5 * row, nodes: [...bars.nodes, ...lanes], says, legend: STATE };
  }

  // ---- a plan: each strategy in turn, the simplest first ----

  // The parts that are there when most is: as backward begins, or afterwards.
  function atPeak({ peak, memory: { weights, gradients, optimizer, buckets, activations } }) {
    const begins = peak - weights - optimizer - buckets - activations;
    const parts = begins >= 0 ? { gradients: buckets, activations } : { gradients: buckets + gradients };
    const rest = peak - weights - optimizer - Object.values(parts).reduce((all, each) => all + each);
    return { weights, optimizer, ...parts, unsharded: Math.max(0, rest) };
  }

  const share = (part, whole) => `${Math.round((100 * part) / whole)}%`;

  function drawPlan({ model, ranks, batch, context, gpu, card, policy, checkpoints, shown }, data, width, figure) {
    const hardware = { ...data.gpus[gpu], network: card, room: data.room };
    const sizes = data.sizes[model][context];
    const found = plan(
      data.strategies, sizes, hardware, ranks, batch, data.each[policy], data.shares[checkpoints]);
    const [run, names] = [recommended(found, data.close), Object.keys(found)];
    const fastest = Math.max(...names.map((name) => (found[name].fits ? found[name].tokensPerSecond : 0)));
    const bars = stacked(
      names.map((name) => [data.names[name], atPeak(found[name])]), data.room * hardware.memory, width, figure, 66);
    const answers = names.map((name, row) => {
      const { fits, tokensPerSecond } = found[name];
      const words = fits
        ? `${many(Math.round(tokensPerSecond))} tokens/s (${share(tokensPerSecond, fastest)})`
        : "does not fit";
      return text(66, 26 + row * 46 + 34, name === run ? `${words}: run this` : words, name === run ? "strong small" : "small");
    });
    const of = found[shown] ? shown : run ?? names.at(-1);
    const one = found[of];
    const lanes = [
      ["compute", one.compute, "compute"],
      ["memory traffic", one.memoryTraffic, "compute"],
      ["network", one.communication, "communication"],
      ["a step, with overlap", one.overlapped, "backward"],
      ["a step, without overlap", one.sequential, "bubble"],
    ];
    const [top, left, right] = [bars.height + 44, 2, width - 14];
    const times = lanes.flatMap(([name, seconds, kind], row) => [
      svg("text", { x: left, y: top + row * 36 }, svg("tspan", { class: "strong" }, name), ` · ${secondsText(seconds)}`),
      rect(left, top + row * 36 + 7, Math.max(0.5, (seconds / one.sequential) * (right - left)), 12, `phase ${kind}`),
    ]);
    const head = text(left, bars.height + 18, `${data.names[of]}, with ${countText(batch * context)} tokens on a GPU:`);
    return { height: top + 5 * 36, nodes: [...bars.nodes, ...answers, head, ...times], says: planSays(found, run, sizes, hardware, batch, data.names), legend: { ...ALL, unsharded: "temporary" } };
  }

  function planSays(found, run, sizes, gpu, batch, names) {
    const memory = bytesText(gpu.room * gpu.memory);
    if (!run) {
      const least = Object.keys(found).reduce((a, b) => (found[b].peak < found[a].peak ? b : a));
      const { peak, memory: { activations } } = found[least];
      const help = activations / batch > gpu.room * gpu.memory
        ? "The activations of one sequence alone are too much: set checkpoints, or split the sequence."
        : activations > gpu.memory / 2 ? "Take fewer sequences, or set checkpoints." : "Take more GPUs.";
      return `Nothing fits: ${names[least]} needs least, ${bytesText(peak)} of ${memory}. ${help}`;
    }
    const { largestBatch, compute, memoryTraffic, communication, overlapped } = found[run];
    const times = { Compute: compute, "Memory bandwidth": memoryTraffic, "The network": communication };
    const binds = Object.keys(times).reduce((a, b) => (times[b] > times[a] ? b : a));
    const mfu = (3 * sizes.operations * batch) / (overlapped * gpu.flops);
    return `Run ${names[run]}: the simplest that fits into ${memory} and reaches 95% of the fastest. ` +
      `Up to ${many(largestBatch)} sequence${largestBatch > 1 ? "s" : ""} fit${largestBatch > 1 ? "" : "s"} on a GPU. ` +
      `${binds} binds, and the step reaches ${Math.round(100 * mfu)}% of the peak (MFU).`;
  }

  show({ state: drawState, peak: drawPeak, grid: drawGrid, plan: drawPlan });
})();
