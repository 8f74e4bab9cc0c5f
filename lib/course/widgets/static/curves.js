// Pictures over time and size, with sliders: prices of all-reduces, a backward pass, how a step
// scales with the ranks, and how often to save.
(() => {
  "use strict";
  const {
    price, best, crossings, ways, scaled, lost, best_interval, rule_of_thumb,
  } = globalThis.minidistModules["course.widgets.in_page"];
  const {
    svg, text, line, rect, sizeText, secondsText, tickText, capital, listed, ticks, word, step, show,
  } = globalThis.minidistSliders;

  // ---- curves of all-reduces ----

  const [SMALLEST, LARGEST] = [2 ** 4, 2 ** 34]; // bytes

  function drawCurves({ ranks, alpha, bandwidth }, data, width) {
    const { names } = data;
    if (ranks === 1) return word("One rank has nobody to sum with: every all-reduce takes 0 s.");
    if (!bandwidth) return word("With no bandwidth nothing ever arrives: every all-reduce takes forever.");
    const link = [alpha, bandwidth];
    const counts = data.counts[ranks];
    const seconds = (name, size) => price(counts[name], size, ...link);
    const all = Object.keys(names).flatMap((name) => [SMALLEST, LARGEST].map((size) => seconds(name, size)));
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
        (size) => `${x(size).toFixed(1)} ${y(seconds(name, size)).toFixed(1)}`);
    const lines = Object.keys(names).map((name) =>
      svg("path", { class: `curve ${name}`, d: `M${points(name).join("L")}` }));
    const visible = ([nbytes]) => nbytes > SMALLEST && nbytes < LARGEST;
    const seen = crossings(counts, ...link).filter(visible);
    const edges = [SMALLEST, ...seen.map(([nbytes]) => nbytes), LARGEST];
    const bands = edges.slice(1).flatMap((end, i) => {
      const name = best(counts, Math.sqrt(end * edges[i]), ...link);
      const [from, to] = [x(edges[i]), x(end)];
      const room = to - from > 7.2 * name.length;
      const label = room ? [text((from + to) / 2, bottom + 21, names[name], "middle small")] : [];
      return [rect(from, bottom + 2, to - from, 5, `band ${name}`), ...label];
    });
    const marks = seen.flatMap(([nbytes, , to]) => [
      svg("circle", { class: "crossing", cx: x(nbytes), cy: y(seconds(to, nbytes)), r: 5 }),
      text(Math.max(left + 26, x(nbytes)), 32, sizeText(nbytes), "middle strong"),
    ]);
    const at = x(data.mark);
    const bucket = [line(at, 16, at, bottom, "limit"), text(at, 12, "96 MiB, DDP's buckets", at > right - 70 ? "end" : "middle")];
    const winner = best(counts, data.mark, ...link);
    const first = best(counts, SMALLEST, ...link);
    const change = seen.map(([nbytes, , to]) => `${names[to]} from ${sizeText(nbytes)} on`);
    const says =
      (change.length
        ? `${capital(names[first])} is best for small tensors, ${listed(change)}. `
        : `${capital(names[first])} is best for tensors of every size. `) +
      `For 96 MiB ${names[winner]} takes ${secondsText(seconds(winner, data.mark))}` +
      (winner === "ring" ? "." : `, the ring ${secondsText(seconds("ring", data.mark))}.`);
    return { height: bottom + 46, nodes: [...grid, ...bucket, ...bands, ...lines, ...marks], says, legend: names };
  }

  // ---- a backward pass over time ----

  function drawOverlap(values, data, width) {
    const { names } = data;
    const done = ways(step(data, values));
    const { backward } = done[0];
    const most = Math.max(...done.map(({ exposed }) => backward + exposed));
    const [left, right, row] = [2, width - 14, 62];
    const height = names.length * row + 24;
    const x = (seconds) => left + (Math.min(seconds, most) / most) * (right - left);
    const axis = ticks(most, width / 90).flatMap((at) => [
      line(x(at), 0, x(at), height - 18, "grid"),
      text(x(at), height - 4, tickText(at), x(at) > right - 24 ? "end" : at ? "middle" : ""),
    ]);
    const lanes = names.flatMap((name, index) => {
      const y = index * row;
      const { travels, exposed } = done[index];
      const bars = travels.map(([start, end]) => {
        const [from, wide] = [x(start), x(end) - x(start)];
        return rect(from, y + 38, wide > 3 ? wide - 1 : wide, 14, "phase communication");
      });
      const count = `${travels.length} all-reduce${travels.length > 1 ? "s" : ""}`;
      const late = `${secondsText(exposed)} exposed`;
      const words = [svg("tspan", { class: "strong" }, name), ` · ${count} · ${late}`];
      return [
        svg("text", { x: left, y: y + 16 }, ...words),
        rect(left, y + 22, x(backward) - left, 14, "phase backward"),
        ...bars,
      ];
    });
    const [bucketed, overlapped] = done.slice(2);
    const says =
      `The same ${overlapped.travels.length} buckets: after backward they add ${secondsText(bucketed.exposed)} to the step, ` +
      `during it ${secondsText(overlapped.exposed)}: ${Math.round(100 * overlapped.hidden)}% of the communication is hidden.`;
    const legend = { backward: "backward", communication: "all-reduce", limit: "end of backward" };
    // Not through the words between the lanes.
    const ends = names.map((_, index) =>
      line(x(backward), index * row + 20, x(backward), index * row + 56, "limit"));
    return { height, nodes: [...axis, ...lanes, ...ends], says, legend };
  }

  // ---- strong against weak scaling ----

  function drawScaling({ ranks, sequences, gpu, card }, data, width) {
    const machine = { ...data.gpus[gpu], network: card };
    const share = { strong: (n) => (data.begin * sequences) / n, weak: () => sequences };
    const possible = { strong: (n) => share.strong(n) >= 1, weak: () => true };
    const together = { strong: data.begin * sequences, weak: sequences };
    const steps = Object.fromEntries(Object.keys(share).map((name) => [name, new Map(
      data.ranks.filter(possible[name]).map((n) =>
        [n, scaled(data.model, data.length, share[name](n), machine, data.each, n, together[name])]))]));

    // Two steps over time.
    const [left, right, row] = [2, width - 14, 66];
    const most = Math.max(...Object.values(steps).map((each) => each.get(ranks)?.seconds ?? 0));
    const x = (seconds) => left + (seconds / most) * (right - left);
    const bar = (from, to, y, kind) => rect(x(from), y, Math.max(0.5, x(to) - x(from)), 14, `phase ${kind}`);
    const lanes = Object.keys(share).flatMap((name, index) => {
      const y = index * row;
      const now = steps[name].get(ranks);
      const own = share[name](ranks);
      const words = now
        ? `${own.toLocaleString("en")} sequence${own > 1 ? "s" : ""} per rank · ${secondsText(now.seconds)} per step`
        : "fewer sequences than ranks";
      const head = svg("text", { x: left, y: y + 16 }, svg("tspan", { class: "strong" }, name), ` · ${words}`);
      if (!now) return [head];
      const { forward, backward, update, starts, ends, seconds } = now;
      return [
        head,
        bar(0, forward, y + 22, "forward"),
        bar(forward, forward + backward, y + 22, "backward"),
        bar(seconds - update, seconds, y + 22, "compute"),
        ...(ranks > 1 ? [bar(starts, ends, y + 38, "communication")] : []),
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
    for (const n of [1, 8, 64, 512, 4096]) {
      grid.push(text(across(n), bottom + 17, n.toLocaleString("en"), n === counts.at(-1) ? "end" : "middle"));
    }
    grid.push(text(0, top - 42, "efficiency"), text((side + right) / 2, bottom + 34, "ranks", "middle"));
    const bound = (name) => counts.find((n) => {
      const { communication, backward } = steps[name].get(n) ?? {};
      return communication > backward;
    });
    const curves = Object.entries(steps).flatMap(([name, each]) => {
      const at = (n) => [across(n), down(each.get(n).efficiency)];
      const points = [...each.keys()].map((n) => at(n).map((place) => place.toFixed(1)).join(" "));
      const dot = () => svg("circle", { class: "crossing", cx: at(ranks)[0], cy: at(ranks)[1], r: 5 });
      const path = svg("path", { class: `curve ${name}-scaling`, d: `M${points.join("L")}` });
      return each.has(ranks) ? [path, dot()] : [path];
    });
    const first = { strong: bound("strong"), weak: bound("weak") };
    const marks = Object.entries(first).filter(([, n]) => n).flatMap(([name, n]) => {
      const [at, low] = [across(n), name === "weak"];
      const label = `${name}: network-bound`;
      const end = at + 7 * label.length > right;
      return [
        line(at, top - (low ? 8 : 24), at, bottom, "limit"),
        text(at + (end ? -4 : 4), top - (low ? 8 : 24), label, end ? "end" : ""),
      ];
    });

    const percent = (name) => `${Number((100 * steps[name].get(ranks).efficiency).toPrecision(3))}%`;
    const total = (data.begin * sequences).toLocaleString("en");
    const many = ranks.toLocaleString("en");
    const from = (name) => (first[name] ? `from ${first[name].toLocaleString("en")} ranks on` : "never");
    const says = ranks === 1
      ? "One rank has nobody to average with: its efficiency is 100% by definition."
      : (possible.strong(ranks)
            ? `The efficiency of ${many} ranks is ${percent("strong")} if the batch is kept and ${percent("weak")} if it grows. `
            : `${total} sequences are not enough for ${many} ranks; with a batch that grows, their efficiency is ${percent("weak")}. `) +
          `The all-reduce takes longer than backward ${from("strong")} in strong scaling and ${from("weak")} in weak.`;
    const legend = {
      forward: "forward", backward: "backward", compute: "update", communication: "all-reduce",
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
      const share = (each) => lost(each, save, mtbf, restart)[kind];
      const points = intervals.map((each) => `${x(each).toFixed(1)} ${y(share(each)).toFixed(1)}`);
      return svg("path", { class: `curve lost-${kind}`, d: `M${points.join("L")}` });
    });
    const least = best_interval(save, mtbf);
    const now = lost(least, save, mtbf, restart);
    const end = least > 1800;
    const marks = [
      line(x(least), top - 8, x(least), bottom, "limit"),
      text(x(least) + (end ? -4 : 4), top - 8, `least: every ${timeText(least)}`, end ? "end" : ""),
      svg("circle", { class: "crossing", cx: x(least), cy: y(now.total), r: 5 }),
    ];
    const says =
      `Something fails every ${timeText(mtbf)}. With a checkpoint every ${timeText(least)}, ` +
      `${percentText(now.total)} of the time is lost: ${percentText(now.saving)} to saving, ` +
      `${percentText(now.again)} to restarts and to work done twice. ` +
      `The rule of thumb says ${timeText(rule_of_thumb(save, mtbf))}.`;
    const legend = {
      "lost-saving": "saving", "lost-again": "restarting, doing again", "lost-total": "both",
    };
    return { height: bottom + 40, nodes: [...grid, ...lines, ...marks], says, legend };
  }

  show({
    curves: drawCurves, overlap: drawOverlap, scaling: drawScaling, checkpoints: drawCheckpoints,
  });
})();
