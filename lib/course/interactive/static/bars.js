// Bars of what a GPU holds, with sliders: the state of a model, the peak of a step, a grid of GPUs,
// a plan.
(() => {
  "use strict";
  const { html } = globalThis.minidistPlayer;
  const { state } = globalThis.minidistModules["minidist.formulas.memory"];
  const { alone, dimensions, largest, planned, shape, total, usable, whole } =
    globalThis.minidistModules["course.interactive.in_page"];
  const { mfu } = globalThis.minidistModules["minidist.formulas.compute"];
  const { recommended } = globalThis.minidistModules["minidist.formulas.step"];
  const { of_split } = globalThis.minidistModules["minidist.formulas.refusals"];
  const { lanes, bytesText, secondsText, percentText, countText, capital, listed, show } =
    globalThis.minidistSliders;

  const STATE = { weights: "parameters", gradients: "gradients", optimizer: "optimizer state" };
  const PARTS = { ...STATE, activations: "activations", unsharded: "temporary copies" };
  const many = (count) => count.toLocaleString("en");
  const plural = (count, one) => `${many(count)} ${one}${count > 1 ? "s" : ""}`;
  const fitting = (count) => `${plural(count, "sequence")} ${count > 1 ? "fit" : "fits"}`;

  // Bars of bytes, each cut at four times what a GPU has, and a line there; rows: [name, bytes of
  // each part, a note]. Returns the picture, and its legend of these parts.
  function stacked(rows, limit, names) {
    const most = Math.max(...rows.map(([, parts]) => total(parts)));
    const small = most < limit / 8;
    const wide = small ? most * 1.05 || 1 : Math.min(Math.max(most, limit) * 1.05, limit * 4);
    const line = small ? [] : [[limit, limit, "limit"]];
    const all = rows.map(([name, parts, note]) => {
      const held = total(parts);
      const words = [bytesText(held), ...(held > wide ? ["off the scale"] : []), ...(note ? [note] : [])];
      let at = 0;
      const bars = Object.entries(parts).map(([part, nbytes]) => [at, (at += nbytes), part]);
      return [name, words.join(" · "), "", [...bars, ...line]];
    });
    const gpu = `${bytesText(limit)} of one GPU${small ? ", far off to the right" : ""}`;
    return { node: lanes(all, wide), legend: { ...names, limit: gpu } };
  }

  // Times, each with its name, from [name, seconds, kind, a note].
  function timed(rows, most) {
    return lanes(rows.map(([name, seconds, kind, note = secondsText(seconds)]) =>
      [name, note, "thin", [[0, seconds, kind]]]), most);
  }

  // ---- the state of a model, per rank ----

  function drawState({ parameters, ranks = 1, policy }, { each, stages, limit }) {
    const held = stages.map((_, stage) => state(parameters, each[policy], ranks, stage));
    const rows = held.map(({ weights, gradients, total }, stage) =>
      [stages[stage], { weights, gradients, optimizer: total - weights - gradients }]);
    const totals = held.map(({ total }) => total);
    return { ...stacked(rows, limit, STATE), says: sayState(totals, ranks, stages, limit) };
  }

  function sayState(totals, ranks, stages, limit) {
    const [ddp, zero3] = [totals[0], totals.at(-1)].map(bytesText);
    const fits = stages.filter((_, stage) => totals[stage] <= limit);
    const room = bytesText(limit);
    if (!totals[0]) return "A model without parameters has no state: 0 bytes.";
    if (totals.length === 1 && fits.length) return `${ddp}: that fits into ${room}, as long as activations find room beside it.`;
    if (totals.length === 1) return `${ddp}: that does not fit into ${room}.`;
    if (ranks === 1) return `With one rank there is nobody to share with: every strategy holds ${ddp}.`;
    if (fits.length === totals.length) return `All four fit into ${room}; ZeRO-3 takes ${zero3} where DDP takes ${ddp}.`;
    if (!fits.length) return `None fits into ${room}: even ZeRO-3 needs ${zero3} on each rank.`;
    return `DDP would need ${ddp} on every rank. ${listed(fits)} ${fits.length > 1 ? "fit" : "fits"} into ${room}.`;
  }

  // ---- the peak of a step on one GPU ----

  function drawPeak({ model, batch, tokens, policy, checkpoints, memory }, data) {
    if (!model[0]) return { says: "A model without parameters has nothing to train, and holds 0 bytes." };
    const room = usable(memory, data.room);
    const { peak, moments, largest_batch: most } =
      alone(model, tokens, data.gpu, data.each[policy], batch, data.shares[checkpoints], room);
    const [begins, update] = moments;
    const [blocks, wide] = model.length > 1 ? model : shape(model[0]);
    const when = total(begins) > total(update) ? "when backward begins" : "in the update";
    const what = `${bytesText(room)}, ${percentText(room, memory)} of the GPU`;
    const says = [
      `${plural(blocks, "block")}, ${many(wide)} wide. The peak is ${bytesText(peak)}, ${when}.`,
      total(update) > room
        ? `The state alone does not fit into ${what}, however small the batch.`
        : most < 1
          ? `Not even one sequence fits into ${what}.`
          : `${peak > room ? "Only" : "Up to"} ${fitting(most)} into ${what}.`,
    ];
    const rows = [["backward begins", begins], ["in the update", update]];
    return { ...stacked(rows, memory, PARTS), says: says.join(" ") };
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

  function drawGrid(values, data) {
    const { model, gpus, tensor, pipeline, interleaved, sequences, strategy, checkpoints } = values;
    if (!model[0]) return { says: "A model without parameters has nothing to hold and nothing to send." };
    const why = unlike(values, data);
    if (why) return { says: `${capital(why)}.`.replace("..", ".") };
    const ranks = { data: gpus / (tensor * pipeline), tensor, pipeline };
    const own = sequences / ranks.data;
    const [batch, split] = pipeline > 1 ? [1, [tensor, pipeline, own, interleaved]] : [own, [tensor, 1, 1, 1]];
    const limit = usable(data.gpu.memory, data.room);
    const again = data.shares[checkpoints];
    const found = planned(model, data.length, data.gpu, data.each, gpus, batch, again, limit, split, strategy);
    const { sent, seconds } = dimensions(found, strategy);
    const rows = ["compute", "bubble", "data", "tensor", "pipeline"].map((kind) => {
      const takes = seconds[kind] ?? 0;
      if (!(kind in ranks)) return [kind, takes, kind];
      const when = kind === "pipeline" ? "while it computes" : secondsText(takes);
      const note = ranks[kind] === 1 ? "nothing to send" : `sends ${bytesText(sent[kind])}, ${when}`;
      return [`${kind} ${many(ranks[kind])}`, takes, "communication", note];
    });
    const { node, legend } = stacked([["holds", largest(found[strategy].memory)]], limit, PARTS);
    const picture = html("div", {}, node, timed(rows, Math.max(...Object.values(seconds))));
    return { node: picture, says: sayGrid(found[strategy], ranks, own, seconds, limit), legend };
  }

  function sayGrid({ peak, fits, overlapped }, ranks, own, seconds, limit) {
    const slow = seconds.tensor > seconds.data ? "tensor" : "data";
    const takes = seconds[slow] > seconds.compute
      ? `The ${slow} traffic takes longer than compute.`
      : `The ${slow} traffic takes longest, ${percentText(seconds[slow], seconds.compute)} of compute.`;
    const bubble = `The bubble is ${percentText(seconds.bubble, overlapped)} of the time.`;
    return [
      `${plural(ranks.data, "replica")} of ${plural(ranks.tensor * ranks.pipeline, "GPU")}, ${plural(own, "sequence")} each.`,
      `The peak of ${bytesText(peak)} ${fits ? "fits" : "does not fit"} into ${bytesText(limit)}.`,
      ranks.data * ranks.tensor === 1 ? "No replica and no layer sends anything." : takes,
      ...(ranks.pipeline > 1 ? [bubble] : []),
      `A step takes ${secondsText(overlapped)}.`,
    ].join(" ");
  }

  // ---- a plan: each strategy in turn, the simplest first ----

  function drawPlan({ model, ranks, batch, tokens, gpu, card, policy, checkpoints, shown }, data) {
    const hardware = { ...data.gpus[gpu], network: card };
    const limit = usable(hardware.memory, data.room);
    const again = data.shares[checkpoints];
    const found = planned(model, tokens, hardware, data.each[policy], ranks, batch, again, limit, [1, 1, 1, 1]);
    const [run, names] = [recommended(found, 1, data.close), Object.keys(found)];
    const rates = names.map((name) => (found[name].fits ? found[name].tokens_per_second : 0));
    const answers = names.map((name, row) => {
      const rate = `${many(Math.round(rates[row]))} tokens/s (${percentText(rates[row], Math.max(...rates))})`;
      const note = rates[row] ? rate + (name === run ? ": run this" : "") : "does not fit";
      return [data.names[name], largest(found[name].memory), note];
    });
    const of = found[shown] ? shown : run || names.at(-1);
    const one = found[of];
    const times = timed([
      ["compute", one.compute, "compute"],
      ["memory traffic", one.memory_traffic, "compute"],
      ["network", one.communication, "communication"],
      ["a step, with overlap", one.overlapped, "backward"],
      ["a step, without overlap", one.sequential, "bubble"],
    ], one.sequential);
    const head = html("p", {}, `${data.names[of]}, with ${countText(batch * tokens)} tokens on a GPU:`);
    const { node, legend } = stacked(answers, limit, PARTS);
    const says = sayPlan(found, run, limit, hardware, batch, data.names);
    return { node: html("div", {}, node, head, times), says, legend };
  }

  function sayPlan(found, run, limit, gpu, batch, names) {
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
      `Up to ${fitting(most)} on a GPU. ` +
      `${binds} binds, and the step reaches ${percentText(mfu(step, overlapped), 1)} of the peak (MFU).`;
  }

  show({ state: drawState, peak: drawPeak, grid: drawGrid, plan: drawPlan });
})();
