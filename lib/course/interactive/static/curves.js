// Curves with sliders: prices of all-reduces, how a step scales with the ranks, and how often to save.
(() => {
  "use strict";
  const { html, svg } = globalThis.minidistPlayer;
  const { price, best, crossings, scaled, lost, best_interval, rule_of_thumb } =
    globalThis.minidistModules["course.interactive.in_page"];
  const { lanes, sizeText, secondsText, tickText, capital, listed, show } =
    globalThis.minidistSliders;

  const text = (x, y, words, kind = "") => svg("text", { x, y, class: kind }, words);
  const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });

  // A chart over `width`: x is logarithmic from least to most, y maps a value to its share of the
  // height. Its parts are nodes that `picture` takes.
  function chart(width, left, top, height, [least, most], share) {
    const [right, bottom] = [width - 20, top + height];
    const x = (value) => left + (Math.log(value / least) / Math.log(most / least)) * (right - left);
    const y = (value) => bottom - share(value) * height;
    const point = ([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`;
    return {
      x, bottom,
      rows: (marks) => marks.flatMap(([at, words]) =>
        [line(left, y(at), right, y(at), "grid"), text(left - 6, y(at) + 4, words, "end")]),
      columns: (marks, below = 17) => marks.flatMap(([at, words]) =>
        [line(x(at), top, x(at), bottom, "grid"), text(x(at), bottom + below, words, "middle")]),
      names: (above, up, below) =>
        [text(0, top - above, up), text((left + right) / 2, bottom + 34, below, "middle")],
      curve: (kind, points) => svg("path", { class: `curve ${kind}`, d: `M${points.map(point).join("L")}` }),
      dot: (at, value) => svg("circle", { class: "crossing", cx: x(at), cy: y(value), r: 5 }),
      // A line at a place, and words beside its upper end.
      mark: (at, above, words) => {
        const over = x(at) + 7 * words.length > right;
        const label = text(x(at) + (over ? -4 : 4), top - above, words, over ? "end" : "");
        return [line(x(at), top - above, x(at), bottom, "limit"), label];
      },
      picture: (below, ...nodes) => svg("svg", { width, height: bottom + below }, ...nodes.flat()),
    };
  }

  const spread = ([least, most], count) =>
    Array.from({ length: count + 1 }, (_, i) => least * (most / least) ** (i / count));

  // ---- curves of all-reduces ----

  const SIZES = [2 ** 4, 2 ** 34]; // bytes
  const MARKS = [[2 ** 10, "1 KiB"], [2 ** 20, "1 MiB"], [2 ** 30, "1 GiB"]];

  function drawCurves({ ranks, alpha, bandwidth }, data, width) {
    const { names } = data;
    if (ranks === 1) return { says: "One rank has nobody to sum with: every all-reduce takes 0 s." };
    if (!bandwidth) return { says: "With no bandwidth nothing ever arrives: every all-reduce takes forever." };
    const counts = data.counts[ranks];
    const seconds = (name, size) => price(counts[name], size, alpha, bandwidth);
    const bestOf = (size) => best(counts, size, alpha, bandwidth);
    const ends = Object.keys(names).flatMap((name) => SIZES.map((size) => Math.log10(seconds(name, size))));
    const [low, high] = [Math.floor(Math.min(...ends)), Math.ceil(Math.max(...ends))];
    const axes = chart(width, 54, 40, 260, SIZES, (value) => (Math.log10(value) - low) / (high - low));
    const powers = [];
    for (let power = low; power <= high; power += Math.ceil((high - low) / 7)) powers.push(Number(`1e${power}`));
    const grid = [...axes.rows(powers.map((each) => [each, tickText(each)])), ...axes.columns(MARKS, 38)];
    const lines = Object.keys(names).map((name) =>
      axes.curve(name, spread(SIZES, 60).map((size) => [size, seconds(name, size)])));
    const seen = crossings(counts, alpha, bandwidth).filter(([size]) => size > SIZES[0] && size < SIZES[1]);
    const marks = seen.flatMap(([size, , to]) => [
      axes.dot(size, seconds(to, size)),
      text(Math.max(80, axes.x(size)), 32, sizeText(size), "middle strong"),
    ]);
    const bucket = axes.mark(data.mark, 28, "96 MiB, DDP's buckets");
    const bands = bandsOf(axes, seen, bestOf, names);
    const says = sayCurves(names, bestOf, seen, data.mark, (name) => secondsText(seconds(name, data.mark)));
    return { node: axes.picture(46, grid, bucket, bands, lines, marks), says, legend: names };
  }

  // Below the axis: what is best for these sizes.
  function bandsOf({ x, bottom }, seen, bestOf, names) {
    const edges = [SIZES[0], ...seen.map(([size]) => size), SIZES[1]];
    return edges.slice(1).flatMap((end, i) => {
      const name = bestOf(Math.sqrt(end * edges[i]));
      const [from, to] = [x(edges[i]), x(end)];
      const band = { x: from, y: bottom + 2, width: to - from, height: 5, class: `band ${name}` };
      const label = text((from + to) / 2, bottom + 21, names[name], "middle small");
      return [svg("rect", band), ...(to - from > 7.2 * name.length ? [label] : [])];
    });
  }

  function sayCurves(names, bestOf, seen, mark, takes) {
    const first = capital(names[bestOf(SIZES[0])]);
    const change = seen.map(([size, , to]) => `${names[to]} from ${sizeText(size)} on`);
    const sizes = change.length ? `small tensors, ${listed(change)}` : "tensors of every size";
    const winner = bestOf(mark);
    const ring = winner === "ring" ? "" : `, the ring ${takes("ring")}`;
    return `${first} is best for ${sizes}. For 96 MiB ${names[winner]} takes ${takes(winner)}${ring}.`;
  }

  // ---- strong against weak scaling ----

  const SHARES = [[0, "0%"], [0.5, "50%"], [1, "100%"]];
  const RANKS = [1, 8, 64, 512, 4096].map((n) => [n, n.toLocaleString("en")]);

  function drawScaling({ ranks, sequences, gpu, card }, data, width) {
    const machine = { ...data.gpus[gpu], network: card };
    const total = data.begin * sequences;
    const stepOf = (n, share, together) =>
      [n, { share, ...scaled(data.model, data.length, share, machine, data.each, n, together) }];
    const enough = data.ranks.filter((n) => n <= total);
    const steps = { // name → ranks → step
      strong: new Map(enough.map((n) => stepOf(n, total / n, total))),
      weak: new Map(data.ranks.map((n) => stepOf(n, sequences, sequences))),
    };
    const bound = Object.entries(steps).map(([name, each]) =>
      [name, data.ranks.find((n) => each.get(n)?.communication > each.get(n)?.backward)]);
    const picture = html("div", {}, stepsOf(steps, ranks), efficiencies(steps, ranks, bound, width));
    const legend = {
      forward: "forward", backward: "backward", compute: "update", communication: "all-reduce",
      "strong-scaling": "strong: batch kept", "weak-scaling": "weak: batch grows",
    };
    return { node: picture, says: sayScaling(steps, ranks, total, Object.fromEntries(bound)), legend };
  }

  // A step of each over time.
  function stepsOf(steps, ranks) {
    const now = Object.entries(steps).map(([name, each]) => [name, each.get(ranks)]);
    const rows = now.flatMap(([name, step]) => {
      if (!step) return [[name, "fewer sequences than ranks", "thin", []]];
      const { share, forward, backward, update, starts, ends, seconds } = step;
      const note = `${share.toLocaleString("en")} sequence${share > 1 ? "s" : ""} per rank · ${secondsText(seconds)} per step`;
      const computes = [
        [0, forward, "forward"],
        [forward, forward + backward, "backward"],
        [seconds - update, seconds, "compute"],
      ];
      const sends = ranks > 1 ? [[starts, ends, "communication"]] : [];
      return [[name, note, "thin", computes], ["", "", "thin", sends]];
    });
    return lanes(rows, Math.max(...now.map(([, step]) => step?.seconds ?? 0)));
  }

  // The efficiency of both over the ranks, and from where on the network is what takes longest.
  function efficiencies(steps, ranks, bound, width) {
    const axes = chart(width, 44, 60, 150, [1, RANKS.at(-1)[0]], (share) => share);
    const grid = [...axes.rows(SHARES), ...axes.columns(RANKS), ...axes.names(42, "efficiency", "ranks")];
    const marks = bound.map(([name, n]) =>
      n ? axes.mark(n, name === "weak" ? 8 : 24, `${name}: network-bound`) : []);
    const curves = Object.entries(steps).map(([name, each]) => {
      const points = [...each].map(([n, { efficiency }]) => [n, efficiency]);
      const dot = each.has(ranks) ? [axes.dot(ranks, each.get(ranks).efficiency)] : [];
      return [axes.curve(`${name}-scaling`, points), ...dot];
    });
    return axes.picture(40, grid, marks.flat(), curves.flat());
  }

  function sayScaling({ strong, weak }, ranks, total, bound) {
    if (ranks === 1) return "One rank has nobody to average with: its efficiency is 100% by definition.";
    const many = (count) => count.toLocaleString("en");
    const percent = (each) => `${Number((100 * each.get(ranks).efficiency).toPrecision(3))}%`;
    const from = (n) => (n ? `from ${many(n)} ranks on` : "never");
    const efficiency = strong.has(ranks)
      ? `The efficiency of ${many(ranks)} ranks is ${percent(strong)} if the batch is kept and ${percent(weak)} if it grows.`
      : `${many(total)} sequences are not enough for ${many(ranks)} ranks; with a batch that grows, their efficiency is ${percent(weak)}.`;
    return `${efficiency} The all-reduce takes longer than backward ${from(bound.strong)} in strong scaling and ${from(bound.weak)} in weak.`;
  }

  // ---- checkpoints: how often ----

  const TIMES = [[1, "1 s"], [60, "1 min"], [3600, "1 h"], [86400, "1 day"], [864000, ""]];
  const UNITS = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"], [0, "s"]];
  function timeText(seconds) {
    const [unit, name] = UNITS.find(([least]) => seconds >= least);
    const value = seconds / (unit || 1);
    return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${name}`;
  }
  const percentText = (share) =>
    `${share >= 0.9995 ? 100 : Number((100 * share).toPrecision(share < 0.1 ? 2 : 3))}%`;

  function drawCheckpoints({ gpus, years, save, restart }, data, width) {
    const mtbf = (years * data.year) / gpus;
    const ends = [TIMES[0][0], TIMES.at(-1)[0]];
    const axes = chart(width, 46, 36, 200, ends, (share) => share);
    const grid = [
      ...axes.rows([0, 0.25, 0.5, 0.75, 1].map((share) => [share, `${100 * share}%`])),
      ...axes.columns(TIMES),
      ...axes.names(22, "of the time", "from checkpoint to checkpoint"),
    ];
    const losses = spread(ends, 120).map((each) => [each, lost(each, save, mtbf, restart)]);
    const lines = ["saving", "again", "total"].map((kind) =>
      axes.curve(`lost-${kind}`, losses.map(([each, shares]) => [each, shares[kind]])));
    const least = best_interval(save, mtbf);
    const now = lost(least, save, mtbf, restart);
    const marks = [...axes.mark(least, 8, `least: every ${timeText(least)}`), axes.dot(least, now.total)];
    const says =
      `Something fails every ${timeText(mtbf)}. With a checkpoint every ${timeText(least)}, ` +
      `${percentText(now.total)} of the time is lost: ${percentText(now.saving)} to saving, ` +
      `${percentText(now.again)} to restarts and to work done twice. ` +
      `The rule of thumb says ${timeText(rule_of_thumb(save, mtbf))}.`;
    const legend = {
      "lost-saving": "saving", "lost-again": "restarting, doing again", "lost-total": "both",
    };
    return { node: axes.picture(40, grid, lines, marks), says, legend };
  }

  show({ curves: drawCurves, scaling: drawScaling, checkpoints: drawCheckpoints });
})();
