// The only arithmetic that the book's widgets do in the browser. Each function says again what a
// Python function says, and a test compares the two over a grid. Bytes and seconds throughout.
globalThis.minidistFormulas ??= (() => {
  "use strict";

  // ---- minidist.memory.state: what a rank holds of the state of training ----

  // `each`: bytes of one parameter's weights, gradients, master weights and moments.
  function stateBytes(parameters, each, ranks, stage) {
    const part = (name, sharded) =>
      Math.ceil((parameters * each[name]) / (stage >= sharded ? ranks : 1));
    const weights = part("weights", 3);
    const gradients = part("gradients", 2);
    const optimizer = part("master", 1) + part("moments", 1);
    return { weights, gradients, optimizer, total: weights + gradients + optimizer };
  }

  // ---- minidist.schedule.cost: all-reduces on a switch ----

  const log2 = (ranks) => 31 - Math.clz32(ranks); // rounded down
  const fold = (ranks) => (2 ** log2(ranks) === ranks ? 0 : 2); // messages that folding adds

  // How many messages follow each other, and how many tensors they carry in all.
  const COUNTS = {
    ring: (n) => [2 * (n - 1), (2 * (n - 1)) / n],
    recursive_doubling: (n) => [log2(n) + fold(n), log2(n) + fold(n)],
    halving_doubling: (n) => [2 * log2(n) + fold(n), 2 - 2 / 2 ** log2(n) + fold(n)],
    tree: (n) => [2 * Math.ceil(Math.log2(n)), 2 * Math.ceil(Math.log2(n))],
  };

  // beta: seconds per byte; Infinity where there is no bandwidth.
  function price(algorithm, ranks, nbytes, { alpha, beta }) {
    const [messages, tensors] = COUNTS[algorithm](ranks);
    return messages * alpha + (tensors * nbytes ? tensors * nbytes * beta : 0);
  }

  function best(ranks, nbytes, link) {
    const names = Object.keys(COUNTS);
    const prices = names.map((name) => price(name, ranks, nbytes, link));
    return names[prices.indexOf(Math.min(...prices))];
  }

  // The sizes at which another algorithm becomes the best: [{ nbytes, from, to }], smallest first.
  function crossings(ranks, link) {
    const found = [];
    const lines = Object.entries(COUNTS).map(([name, counts]) => [name, ...counts(ranks)]);
    const least = (other, one) =>
      one[1] < other[1] || (one[1] === other[1] && one[2] < other[2]) ? one : other;
    let now = lines.reduce(least); // the fewest messages, for the smallest tensors
    for (;;) {
      const [name, messages, tensors] = now;
      const meet = ([, more, fewer]) =>
        ((more - messages) * link.alpha) / ((tensors - fewer) * link.beta);
      const next = lines.filter((line) => line[2] < tensors);
      if (!next.length) return found;
      const near = (other, one) =>
        meet(one) < meet(other) || (meet(one) === meet(other) && one[2] < other[2]) ? one : other;
      const then = next.reduce(near);
      found.push({ nbytes: meet(then), from: name, to: then[0] });
      now = then;
    }
  }

  // ---- course.widgets.overlap: buckets of gradients that travel during backward or after it ----

  // minidist.parallel.sharding.partition.assign
  function assign(sizes, first, cap) {
    const buckets = [[]];
    let held = 0;
    for (let index = sizes.length - 1; index >= 0; index -= 1) {
      if (buckets.at(-1).length && held >= (buckets.length === 1 ? first : cap)) {
        buckets.push([]);
        held = 0;
      }
      buckets.at(-1).push(index);
      held += sizes[index];
    }
    return buckets;
  }

  const MIB = 2 ** 20;
  const STRATEGIES = {
    naive: (sizes) => [assign(sizes, 0, 0), false],
    flat: (sizes) => [assign(sizes, Infinity, Infinity), false],
    bucketed: (sizes, cap) => [assign(sizes, Math.min(MIB, cap), cap), false],
    overlapped: (sizes, cap) => [assign(sizes, Math.min(MIB, cap), cap), true],
  };

  // perByte: seconds that backward takes for a byte of gradients.
  function overlap(sizes, perByte, strategy, cap, ranks, link) {
    const [buckets, early] = STRATEGIES[strategy](sizes, cap);
    return send(buckets, sizes, perByte, early, "ring", ranks, link);
  }

  // The buckets between borders; each border: how many gradients backward has made before it.
  function between(sizes, borders) {
    const edges = [0, ...[...borders].sort((a, b) => a - b), sizes.length];
    const last = sizes.length - 1;
    const buckets = edges.slice(1).map((end, i) =>
      Array.from({ length: end - edges[i] }, (_, place) => last - edges[i] - place));
    return buckets.filter((bucket) => bucket.length);
  }

  function send(buckets, sizes, perByte, early, algorithm, ranks, link) {
    const ready = [];
    let backward = 0;
    for (let index = sizes.length - 1; index >= 0; index -= 1) {
      backward += perByte * sizes[index];
      ready[index] = backward;
    }
    let free = 0;
    const travels = buckets.map((bucket) => {
      const full = early ? Math.max(...bucket.map((index) => ready[index])) : backward;
      const start = Math.max(free, full);
      const nbytes = bucket.reduce((sum, index) => sum + sizes[index], 0);
      free = start + price(algorithm, ranks, nbytes, link);
      return [start, free];
    });
    return { backward, travels, exposed: Math.max(0, free - backward) };
  }

  // ---- course.widgets.scaling: a data-parallel step whose all-reduce runs during backward ----

  // flops: operations a second that a rank reaches.
  function stepTime({ parameters, buckets }, flops, tokens, ranks, link) {
    const [forward, backward] = [2, 4].map((each) => (each * parameters * tokens) / flops);
    const bucket = (4 * parameters) / buckets;
    const allReduce = buckets * price("halving_doubling", ranks, bucket, link);
    return { forward, backward, allReduce, seconds: forward + Math.max(backward, allReduce) };
  }

  // ---- course.widgets.peak: the most that a GPU holds in a step ----

  const VOCABULARY = 128256;

  // blocks, width: of a GPT with so many parameters. `cast`: copies of the weights until backward
  // has used them; `update`: what the optimizer needs while it updates.
  function peakBytes(parameters, [blocks, width], each, tokens, checkpoints) {
    const { weights, gradients, optimizer } = stateBytes(parameters, each, 1, 0);
    const [used, wider] = widths(each);
    const [block, logits] = [16 * width * used + 2 * width * wider, VOCABULARY * (used + 8)]; // bytes of each token
    const inputs = blocks * width * (used + wider);
    const activations = tokens * (checkpoints ? inputs + Math.max(block, logits) : blocks * block + logits);
    const [cast, update] = [wider ? parameters * used : 0, parameters * each.update];
    const peak = weights + optimizer + Math.max(gradients + update, cast + activations);
    return { weights, gradients, optimizer, activations, cast, update, peak };
  }

  // Bytes of a number in forward and backward, and what the weights' dtype has beyond them.
  const widths = (each) => [each.compute, Math.max(0, each.weights - each.compute)];

  // ---- course.widgets.grid: GPUs in a grid of replicas, each split by width and by depth ----

  // gpu: flops that it reaches while nothing waits, bytes a second of its nvlink and its network;
  // batch: sequences, and the length of each, in tokens.
  function gridStep(parameters, [blocks, width], each, stage, [gpus, tensor, pipeline, chunks], batch, gpu) {
    const replicas = gpus / (tensor * pipeline);
    const own = Math.ceil(parameters / (tensor * pipeline));
    const held = stateBytes(own, each, replicas, stage);
    const micro = batch[0] / replicas; // sequences of a replica, each a micro-batch
    const tokens = micro * batch[1];
    const others = (ranks) => (ranks - 1) / ranks;
    const sent = {
      data: own * others(replicas) * (each.gradients + (stage === 3 ? 2 * each.compute : each.gradients)),
      tensor: (16 * tokens * width * others(tensor) * blocks) / pipeline,
      pipeline: pipeline > 1 ? (4 * chunks * tokens * width) / tensor : 0,
    };
    const beside = Math.min(replicas, Math.max(1, gpu.node / tensor)); // replicas in a node
    const seconds = {
      compute: (6 * parameters * batch[0] * batch[1]) / gpus / gpu.flops,
      bubble: 0,
      data: sent.data / (replicas > beside ? beside * gpu.network : gpu.nvlink),
      tensor: sent.tensor / (tensor > gpu.node ? gpu.network : gpu.nvlink),
      pipeline: sent.pipeline / gpu.network,
    };
    seconds.bubble = ((seconds.compute + seconds.tensor) * (pipeline - 1)) / micro / chunks;
    const late = Math.max(0, seconds.data - (2 / 3) * seconds.compute); // than backward
    const step = seconds.compute + seconds.bubble + seconds.tensor + late;
    return { replicas, micro, held, sent, seconds, step };
  }

  // ---- minidist.planner: a training step under each strategy ----

  const divisor = (a, b) => (b ? divisor(b, a % b) : a);
  const add = (...costs) => costs.reduce((all, cost) => all.map((sum, i) => sum + cost[i]), [0, 0, 0]);

  // strategies: the stage of each, and what it sends; sizes, gpu: fields of Sizes and of Accelerator;
  // each: as for stateBytes; checkpointing: a share of the blocks. Strategy → forecast.
  function plan(strategies, sizes, gpu, ranks, batch, each, checkpointing) {
    const local = ranks <= gpu.per_node ? ranks : divisor(ranks, gpu.per_node);
    const nodes = ranks / local;
    const given = { sizes, gpu, batch, each, checkpointing };
    const hybrid = nodes > 1 && local === gpu.per_node && local > 1;
    const names = Object.keys(strategies).filter((name) => hybrid || name !== "hsdp");
    const place = (name) => (name === "single" ? { local: 1, nodes: 1 } : { local, nodes });
    return Object.fromEntries(
      names.map((name) => [name, forecast(name, { ...strategies[name], ...given, ...place(name) })]));
  }

  // The simplest strategy that fits and is close to the fastest; undefined if none fits.
  function recommended(forecasts, close) {
    const fits = Object.keys(forecasts).filter((name) => forecasts[name].fits);
    const most = Math.max(...fits.map((name) => forecasts[name].tokensPerSecond));
    return fits.find((name) => forecasts[name].tokensPerSecond >= close * most);
  }

  function forecast(strategy, { stage, sends, sizes, gpu, local, nodes, batch, each, checkpointing }) {
    const [ranks, { parameters, units, largest_unit: unit }] = [local * nodes, sizes];
    const [used, wider] = widths(each);
    const weights = parameters * (stage === 3 ? used : each.weights); // as they are sent
    const gradients = parameters * each.gradients;
    const rest = parameters - units * unit;
    const shards = strategy === "hsdp" ? local : ranks;
    const third = Math.floor(unit / 3) * each.gradients;
    const bucket = Math.min(gradients, Math.max(25 * MIB, third));

    // Memory: the parts, and of what is unsharded the part that is there as backward begins.
    const held = stateBytes(parameters, each, shards, stage);
    const inside = units > 1 ? 1 : 0;
    const cast = wider ? used * parameters : 0;
    const flat = Math.min(2 * bucket, gradients) + third;
    const units3 = rest * 2 * used + unit * (2 + inside) * used;
    const [atBegin, unsharded] = {
      single: [cast, 0], ddp: [cast, 0], zero1: [cast, bucket], zero2: [cast + flat, flat],
    }[strategy] ?? [units3, units3 + unit * inside * each.gradients];
    const [buckets, update] = [strategy === "ddp" ? gradients : 0, (each.update * parameters) / (stage ? shards : 1)];
    const kept = (1 - checkpointing) * sizes.activations + checkpointing * sizes.activations_checkpointed;
    const entry = sizes.width * sizes.tokens; // a block's input, which a checkpoint keeps
    const again = checkpointing * (units - 1) * Math.max(0, (sizes.stream - entry) / units - entry);
    const stream = (stage === 3 ? 0 : wider) * (sizes.stream - again);
    const activations = batch * (used * kept + stream + (used + 8) * sizes.outputs);
    const always = held.weights + held.optimizer + buckets;
    const ends = held.gradients + Math.max(unsharded, update);
    const peak = always + Math.max(atBegin + activations, ends);
    const free = gpu.room * gpu.memory - always;
    const largestBatch = ends <= free
      ? Math.max(0, Math.trunc((free - atBegin) / (activations / batch))) : 0;

    // Communication: [seconds, bytes sent, messages] in forward, in backward, and afterwards.
    const pieces = stage === 3 ? units + (rest > 0 ? 1 : 0) : Math.ceil(gradients / bucket);
    const ring = (nbytes, n, alpha, rate) => {
      const [hops, sent] = [pieces * (n - 1), (nbytes * (n - 1)) / n];
      return [hops * alpha + sent / rate, sent, hops];
    };
    const within = (nbytes) => ring(nbytes, local, gpu.nvlink_latency, gpu.nvlink);
    const between = (nbytes) => ring(nbytes / local, nodes, gpu.network_latency, gpu.network);
    const all = (nbytes) => add(within(nbytes), between(nbytes));
    const over = { "all ranks": all, "ranks of a node": within, nodes: between };
    const cost = ([part, who]) => over[who]({ weights, gradients }[part]);
    const costs = sends.map((phase) => add(...phase.map(cost)));
    const [communication, sent, messages] = add(...costs);

    // Time: forward, backward, update.
    const rate = (gpu.flops * gpu.utilization * sizes.width) / (sizes.width + gpu.half_width);
    const forward = (batch * sizes.operations) / rate;
    const computes = [forward, (2 + checkpointing) * forward, 0];
    const moments = Math.ceil(parameters * each.moments);
    const own = parameters * each.weights;
    const updated = each.master ? 2 * parameters * each.master + own : 2 * own;
    const moved = gradients + 2 * moments + updated;
    const moves = [weights, (1 + checkpointing) * weights + gradients, moved / (stage ? shards : 1)]
      .map((nbytes) => nbytes / gpu.bandwidth);
    const alone = computes.map((seconds, phase) => Math.max(seconds, moves[phase]));
    const together = (a, b) => Math.max(a + b / pieces, a / pieces + b);
    const overlapped = together(alone[0], costs[0][0]) + together(alone[1], costs[1][0]) + alone[2] + costs[2][0];
    const sum = (times) => times.reduce((all, time) => all + time, 0);
    return {
      memory: { weights: held.weights, gradients: held.gradients, optimizer: held.optimizer, unsharded, activations, buckets, update },
      peak, fits: peak <= gpu.room * gpu.memory, largestBatch, sent, messages,
      compute: sum(computes), memoryTraffic: sum(moves), communication,
      sequential: sum(alone) + communication, overlapped,
      tokensPerSecond: (ranks * batch * sizes.tokens) / overlapped,
    };
  }

  // ---- course.widgets.checkpoints: what failures and checkpoints cost ----

  // Seconds throughout; the shares of the time that train nothing new.
  function lostShares(interval, save, mtbf, restart) {
    const exponent = (interval + save) / mtbf;
    if (restart / mtbf + exponent > 700) return { saving: 0, again: 1, total: 1 };
    const took = mtbf * Math.exp(restart / mtbf) * Math.expm1(exponent);
    const [useful, saving] = [interval / took, save / took];
    const again = 1 - useful - saving;
    return { saving, again, total: saving + again };
  }

  function bestInterval(save, mtbf) {
    let [low, high] = [0, 1];
    for (let i = 0; i < 60; i += 1) {
      const x = (low + high) / 2;
      if ((1 - x) * Math.exp(x) > Math.exp(-save / mtbf)) low = x;
      else high = x;
    }
    return mtbf * low;
  }

  const algorithms = Object.keys(COUNTS);
  const strategies = Object.keys(STRATEGIES);
  return Object.freeze({
    stateBytes, price, best, crossings, assign, overlap, between, send, stepTime, peakBytes, gridStep, lostShares,
    bestInterval, plan, recommended,
    algorithms, strategies,
  });
})();
