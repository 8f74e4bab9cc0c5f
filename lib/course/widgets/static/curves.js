// Pictures over time and size, with sliders: prices of all-reduces, a backward pass, how a step
// scales with the ranks, and how often to save.
(() => {
  "use strict";
  const {
    price, best, crossings, overlap, stepTime, lostShares, bestInterval, algorithms, strategies,
  } = globalThis.minidistFormulas;
  const {
    svg, text, line, rect, sizeText, secondsText, tickText, capital, listed, ticks, word, show,
  } = globalThis.minidistSliders;

  // ---- curves of all-reduces ----

  const [SMALLEST, LARGEST] = [2 ** 4, 2 ** 34]; // bytes

  function drawCurves({ ranks, alpha, bandwidth }, data, width) {
    const link = { alpha, beta: 1 / bandwidth };
    const { names } = data;
    if (ranks === 1) return word("One rank has nobody to sum with: every all-reduce takes 0 s.");
    if (!bandwidth) return word("With no bandwidth nothing ever arrives: every all-reduce takes forever.");
    const all = algorithms.flatMap((name) => [SMALLEST, LARGEST].map((size) => price(name, ranks, size, link)));
    const [low, high] = [Math.floor(Math.log10(Math.min(...all))), Math.ceil(Math.log10(Math.max(...all)))];
    const [left, right, top, bottom] = [54, width - 10, 40, 300];
    const span = Math.log2(LARGEST / SMALLEST);
    const x = (size) => left + (Math.log2(size / SMALLEST) / span) * (right - left);
    const y = (seconds) => bottom - ((Math.log10(seconds) - low) / (high - low)) * (bottom - top);
    const grid = [];
    for (let power = low; power <= high; power += Math.ceil((high - low) / 7)) {
      grid.push(line(left, y(10 ** power), right, y(10 ** power), "grid"));
      grid.push(text(left - 6, y(10 ** power) + 4, tickText(Number(`1e${power}`)), "end"));
    }
    for (const [power, name] of [[10, "1 KiB"], [20, "1 MiB"], [30, "1 GiB"]]) {
      grid.push(line(x(2 ** power), top, x(2 ** power), bottom, "grid"));
      grid.push(text(x(2 ** power), bottom + 38, name, "middle"));
    }
    const points = (name) =>
      Array.from({ length: 61 }, (_, i) => SMALLEST * 2 ** ((i * span) / 60)).map(
        (size) => `${x(size).toFixed(1)} ${y(price(name, ranks, size, link)).toFixed(1)}`);
    const lines = algorithms.map((name) =>
      svg("path", { class: `curve ${name}`, d: `M${points(name).join("L")}` }));
    const visible = ({ nbytes }) => nbytes > SMALLEST && nbytes < LARGEST;
    const seen = crossings(ranks, link).filter(visible);
    const edges = [SMALLEST, ...seen.map(({ nbytes }) => nbytes), LARGEST];
    const bands = edges.slice(1).flatMap((end, i) => {
      const name = best(ranks, Math.sqrt(end * edges[i]), link);
      const [from, to] = [x(edges[i]), x(end)];
      const room = to - from > 7.2 * name.length;
      const label = room ? [text((from + to) / 2, bottom + 21, names[name], "middle small")] : [];
      return [rect(from, bottom + 2, to - from, 5, `band ${name}`), ...label];
    });
    const marks = seen.flatMap(({ nbytes, to }) => [
      svg("circle", { class: "crossing", cx: x(nbytes), cy: y(price(to, ranks, nbytes, link)), r: 5 }),
      text(Math.max(left + 26, x(nbytes)), 32, sizeText(nbytes), "middle strong"),
    ]);
    const at = x(data.mark);
    const bucket = [line(at, 16, at, bottom, "limit"), text(at, 12, "25 MiB, DDP's bucket", at > right - 70 ? "end" : "middle")];
    const winner = best(ranks, data.mark, link);
    const first = best(ranks, SMALLEST, link);
    const change = seen.map(({ nbytes, to }) => `${names[to]} from ${sizeText(nbytes)} on`);
    const says =
      (change.length
        ? `${capital(names[first])} is best for small tensors, ${listed(change)}. `
        : `${capital(names[first])} is best for tensors of every size. `) +
      `For 25 MiB ${names[winner]} takes ${secondsText(price(winner, ranks, data.mark, link))}` +
      (winner === "ring" ? "." : `, the ring ${secondsText(price("ring", ranks, data.mark, link))}.`);
    return { height: bottom + 46, nodes: [...grid, ...bucket, ...bands, ...lines, ...marks], says, legend: names };
  }

  // ---- a backward pass over time ----

  function drawOverlap({ cap, tokens, ranks, alpha, bandwidth }, data, width) {
    const link = { alpha, beta: 1 / bandwidth };
    const perByte = tokens * data.perToken;
    const done = strategies.map((name) => overlap(data.sizes, perByte, name, cap, ranks, link));
    const never = !bandwidth && ranks > 1;
    const { backward } = done[0];
    const most = never ? 2 * backward : Math.max(...done.map(({ exposed }) => backward + exposed));
    const [left, right, row] = [2, width - 14, 62];
    const height = strategies.length * row + 24;
    const x = (seconds) => left + (Math.min(seconds, most) / most) * (right - left);
    const axis = ticks(most, width / 90).flatMap((at) => [
      line(x(at), 0, x(at), height - 18, "grid"),
      text(x(at), height - 4, tickText(at), x(at) > right - 24 ? "end" : at ? "middle" : ""),
    ]);
    const lanes = strategies.flatMap((name, index) => {
      const y = index * row;
      const { travels, exposed } = done[index];
      const bars = never ? [] : travels.map(([start, end]) => {
        const [from, wide] = [x(start), x(end) - x(start)];
        return rect(from, y + 38, wide > 3 ? wide - 1 : wide, 14, "phase communication");
      });
      const count = `${travels.length} all-reduce${travels.length > 1 ? "s" : ""}`;
      const late = never ? "never ends" : `${secondsText(exposed)} exposed`;
      const words = [svg("tspan", { class: "strong" }, name), ` · ${count} · ${late}`];
      return [
        svg("text", { x: left, y: y + 16 }, ...words),
        rect(left, y + 22, x(backward) - left, 14, "phase backward"),
        ...bars,
      ];
    });
    const [late, hidden] = [done[2].exposed, done[3].exposed];
    const total = done[3].travels.reduce((sum, [start, end]) => sum + end - start, 0);
    const says = never
      ? "With no bandwidth the gradients never arrive, and the step never ends."
      : ranks === 1
        ? "One rank has nobody to average with: nothing is sent, and nothing is exposed."
        : `The same ${done[3].travels.length} buckets: after backward they add ${secondsText(late)} to the step, ` +
          `during it ${secondsText(hidden)}: ${Math.round(100 * (total ? 1 - hidden / total : 1))}% of the communication is hidden.`;
    const legend = { backward: "backward", communication: "all-reduce", limit: "end of backward" };
    // Not through the words between the lanes.
    const ends = strategies.map((_, index) =>
      line(x(backward), index * row + 20, x(backward), index * row + 56, "limit"));
    return { height, nodes: [...axis, ...lanes, ...ends], says, legend };
  }

  // ---- strong against weak scaling ----

  function drawScaling({ ranks, sequences, flops, alpha, bandwidth }, data, width) {
    const link = { alpha, beta: 1 / bandwidth };
    const share = { strong: (n) => (data.begin * sequences) / n, weak: () => sequences };
    const step = (name, n, among = n) =>
      stepTime(data.model, flops, share[name](n) * data.length, among, link);
    const efficiency = (name, n) => step(name, n, 1).seconds / step(name, n).seconds;
    const possible = { strong: (n) => share.strong(n) >= 1, weak: () => true };

    // Two steps over time.
    const [left, right, row] = [2, width - 14, 66];
    const now = Object.fromEntries(Object.keys(share).map((name) => [name, step(name, ranks)]));
    const shown = Object.keys(share).filter((name) => possible[name](ranks));
    const computing = Math.max(...shown.map((name) => now[name].forward + now[name].backward));
    const most = Math.max(computing, ...shown.map((name) => now[name].seconds).filter(Number.isFinite));
    const x = (seconds) => left + (Math.min(seconds, most) / most) * (right - left);
    const bar = (from, to, y, kind) => rect(x(from), y, Math.max(0.5, x(to) - x(from)), 14, `phase ${kind}`);
    const lanes = Object.keys(share).flatMap((name, index) => {
      const y = index * row;
      const { forward, backward, allReduce, seconds } = now[name];
      const own = share[name](ranks);
      const words = !possible[name](ranks)
        ? "fewer sequences than ranks"
        : `${own.toLocaleString("en")} sequence${own > 1 ? "s" : ""} a rank · ` +
          (seconds === Infinity ? "never ends" : `${secondsText(seconds)} per step`);
      const head = svg("text", { x: left, y: y + 16 }, svg("tspan", { class: "strong" }, name), ` · ${words}`);
      if (!possible[name](ranks)) return [head];
      const arrives = ranks > 1 && allReduce < Infinity;
      return [
        head,
        bar(0, forward, y + 22, "forward"),
        bar(forward, forward + backward, y + 22, "backward"),
        ...(arrives ? [bar(forward, forward + allReduce, y + 38, "communication")] : []),
      ];
    });

    // Efficiency over the ranks.
    const [side, top, bottom] = [44, 2 * row + 60, 2 * row + 210];
    const counts = data.ranks;
    const across = (n) => side + (Math.log2(n) / Math.log2(counts.at(-1))) * (right - side);
    const down = (share) => bottom - share * (bottom - top);
    const grid = [0, 0.5, 1].flatMap((share) => [
      line(side, down(share), right, down(share), "grid"),
      text(side - 6, down(share) + 4, `${100 * share}%`, "end"),
    ]);
    for (const n of [1, 16, 256, 4096, 65536]) {
      grid.push(text(across(n), bottom + 17, n.toLocaleString("en"), n === 65536 ? "end" : "middle"));
    }
    grid.push(text(0, top - 42, "efficiency"), text((side + right) / 2, bottom + 34, "ranks", "middle"));
    const exposed = (name) => (n) => {
      const { allReduce, backward } = step(name, n);
      return possible[name](n) && allReduce > backward;
    };
    const curves = Object.keys(share).flatMap((name) => {
      const points = counts.filter(possible[name]).map((n) => `${across(n).toFixed(1)} ${down(efficiency(name, n)).toFixed(1)}`);
      const dot = possible[name](ranks)
        ? [svg("circle", { class: "crossing", cx: across(ranks), cy: down(efficiency(name, ranks)), r: 5 })]
        : [];
      return [svg("path", { class: `curve ${name}-scaling`, d: `M${points.join("L")}` }), ...dot];
    });
    const first = { strong: counts.find(exposed("strong")), weak: counts.find(exposed("weak")) };
    const marks = Object.entries(first).filter(([, n]) => n).flatMap(([name, n]) => {
      const [at, low] = [across(n), name === "weak"];
      const label = `${name}: network-bound`;
      const end = at + 7 * label.length > right;
      return [
        line(at, top - (low ? 8 : 24), at, bottom, "limit"),
        text(at + (end ? -4 : 4), top - (low ? 8 : 24), label, end ? "end" : ""),
      ];
    });

    const percent = (name) => `${Number((100 * efficiency(name, ranks)).toPrecision(3))}%`;
    const total = (data.begin * sequences).toLocaleString("en");
    const many = ranks.toLocaleString("en");
    const from = (name) => (first[name] ? `from ${first[name].toLocaleString("en")} ranks on` : "never");
    const says = ranks === 1
      ? "One rank has nobody to average with: its efficiency is 100% by definition."
      : !bandwidth
        ? "With no bandwidth the gradients never arrive: only a rank alone gets anything done."
        : (possible.strong(ranks)
            ? `The efficiency of ${many} ranks is ${percent("strong")} if the batch is kept and ${percent("weak")} if it grows. `
            : `${total} sequences are not enough for ${many} ranks; with a batch that grows, their efficiency is ${percent("weak")}. `) +
          `The all-reduce takes longer than backward ${from("strong")} in strong scaling and ${from("weak")} in weak.`;
    const legend = {
      forward: "forward", backward: "backward", communication: "all-reduce",
      "strong-scaling": "strong: batch kept", "weak-scaling": "weak: batch grows",
    };
    return { height: bottom + 40, nodes: [...lanes, ...grid, ...marks, ...curves], says, legend };
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
    const [left, right, top, bottom] = [46, width - 12, 36, 236];
    const [shortest, longest] = [TIMES[0][0], TIMES.at(-1)[0]];
    const span = Math.log(longest / shortest);
    const x = (seconds) => left + (Math.log(seconds / shortest) / span) * (right - left);
    const y = (share) => bottom - share * (bottom - top);
    const grid = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
      line(left, y(share), right, y(share), "grid"),
      text(left - 6, y(share) + 4, `${100 * share}%`, "end"),
    ]);
    for (const [seconds, name] of TIMES) {
      grid.push(line(x(seconds), top, x(seconds), bottom, "grid"));
      grid.push(text(x(seconds), bottom + 17, name, "middle"));
    }
    const name = "from checkpoint to checkpoint";
    grid.push(text(0, 14, "of the time"), text((left + right) / 2, bottom + 34, name, "middle"));
    const intervals = Array.from({ length: 121 }, (_, i) => shortest * Math.exp((i / 120) * span));
    const lines = ["saving", "again", "total"].map((kind) => {
      const share = (each) => lostShares(each, save, mtbf, restart)[kind];
      const points = intervals.map((each) => `${x(each).toFixed(1)} ${y(share(each)).toFixed(1)}`);
      return svg("path", { class: `curve lost-${kind}`, d: `M${points.join("L")}` });
    });
    const least = bestInterval(save, mtbf);
    const lost = lostShares(least, save, mtbf, restart);
    const end = least > 1800;
    const marks = [
      line(x(least), top - 8, x(least), bottom, "limit"),
      text(x(least) + (end ? -4 : 4), top - 8, `least: every ${timeText(least)}`, end ? "end" : ""),
      svg("circle", { class: "crossing", cx: x(least), cy: y(lost.total), r: 5 }),
    ];
    const says =
      `Something fails every ${timeText(mtbf)}. With a checkpoint every ${timeText(least)}, ` +
      `${percentText(lost.total)} of the time is lost: ${percentText(lost.saving)} to saving, ` +
      `${percentText(lost.again)} to restarts and to work done twice. ` +
      `The rule of thumb says ${timeText(Math.sqrt(2 * save * mtbf))}.`;
    const legend = {
      "lost-saving": "saving", "lost-again": "restarting, doing again", "lost-total": "both",
    };
    return { height: bottom + 40, nodes: [...grid, ...lines, ...marks], says, legend };
  }

  show({
    curves: drawCurves, overlap: drawOverlap, scaling: drawScaling, checkpoints: drawCheckpoints,
  });
})();
