// Lanes over time that a reader changes: a rank that is late or dies, a backward pass, borders
// between its buckets, and FSDP's prefetch. What happens in them Python has simulated, or does in
// the page.
(() => {
  "use strict";
  const { html } = globalThis.minidistPlayer;
  const { bordered, during, ways } = globalThis.minidistModules["course.interactive.in_page"];
  const { buckets, gradient_bytes } = globalThis.minidistModules["minidist.formulas.memory"];
  const { lanes, share, secondsText, tickText, percentText, listed, step, show } =
    globalThis.minidistSliders;

  // A line through all lanes at the time that the slider says; a pointer moves both.
  function pointed(picture, time, { most, controls }) {
    picture.append(html("u", { style: `left:${share(Math.min(time, most), most)}` }));
    picture.dataset.steps = most / controls.find(({ name }) => name === "time").values[1];
    picture.classList.add("pointed");
    return picture;
  }
  function point(event) {
    const picture = event.target.closest?.(".lanes.pointed");
    const passes = event.type === "pointermove" && event.pointerType !== "mouse" && !event.buttons;
    const figure = picture?.closest("figure");
    if (!figure || passes) return; // or it has just been drawn again
    const { left, width } = picture.getBoundingClientRect();
    const slider = figure.querySelector('input[aria-label="Time"]');
    slider.value = Math.round(((event.clientX - left) / width) * picture.dataset.steps);
    slider.dispatchEvent(new Event("input"));
  }
  for (const name of ["pointerdown", "pointermove"]) document.addEventListener(name, point);

  const inFours = (numbers) =>
    Array.from({ length: numbers.length / 4 }, (_, i) => numbers.slice(4 * i, 4 * i + 4));

  // ---- a rank that is late or dies ----

  function drawStraggler({ rank, what, time }, data) {
    const [ranks, said] = data.records[what] ?? data.records[`${rank} ${what}`];
    const kinds = Object.keys(data.legend);
    const all = ranks.map(([note, ...numbers], i) => {
      const bars = inFours(numbers).map(([kind, start, end, about]) =>
        [start, end, kinds[kind], kind === 2 && end - start >= data.room ? `waits for rank ${about}` : ""]);
      return [data.names[i], note, "", bars];
    });
    const states = Object.groupBy(ranks.keys(), (i) => doing(ranks[i], time, data)[0]);
    const each = Object.values(states).map((who) => {
      const [one, several] = doing(ranks[who[0]], time, data);
      return who.length > 1 ? `ranks ${listed(who)} ${several}` : `rank ${who[0]} ${one}`;
    });
    const diagnosis = data.diagnoses[said.findLast(([from]) => from <= time)[1]];
    const says = `${time} ms: ${each.join("; ")}. minidist.diagnose says: “${diagnosis}”.`;
    const picture = pointed(lanes(all, data.most, data.ticks), time, data);
    return { node: picture, says, legend: data.legend };
  }

  // What a rank does at a time, as said of one and of several.
  function doing([, ...numbers], time, { message, steps }) {
    const parts = inFours(numbers);
    const [kind, start, , about] = parts.find((part) => time < part[2]) ?? parts.at(-1);
    if (kind === 1 && time >= parts.at(-1)[2]) return ["has the sum", "have the sum"];
    const step = `in step ${about + Math.floor((time - start) / message) + 1} of ${steps}`;
    return [
      ["computes", "compute"], [`is ${step}`, `are ${step}`],
      [`waits for rank ${about}`, `wait for rank ${about}`], ["is dead"],
    ][kind];
  }

  // ---- a backward pass, four ways ----

  // Backward, divided by buckets if they are few, and the all-reduces, in milliseconds.
  function pass(name, { backward, travels, full, exposed }, most = 20) {
    const [count, few] = [travels.length, travels.length <= most];
    const note = `${count} all-reduce${count > 1 ? "s" : ""} · ${secondsText(exposed)} exposed`;
    const parts = few ? full.slice(0, count).map((end, i) => [i ? full[i - 1] : 0, end]) : [[0, backward]];
    const bars = (all) => all.map(([start, end]) => [1e3 * start, 1e3 * end]);
    return [
      [name, note, "thin backward", bars(parts)],
      ["", "", `thin communication${few ? "" : " dense"}`, bars(travels)],
    ];
  }

  function drawOverlap(values, data, width) {
    const done = ways(step(data, values));
    const most = Math.max(...done.map(({ backward, exposed }) => backward + exposed));
    const marks = ticks(0.95 * most, width / 90).map((at) => [1e3 * at, tickText(at)]);
    const all = data.names.flatMap((name, i) => pass(name, done[i]));
    const [bucketed, overlapped] = done.slice(2);
    const says =
      `The same ${overlapped.travels.length} buckets: after backward they add ${secondsText(bucketed.exposed)} to the step, ` +
      `during it ${secondsText(overlapped.exposed)}: ${percentText(overlapped.hidden, 1)} of the communication is hidden.`;
    const legend = { backward: "backward", communication: "all-reduce" };
    return { node: lanes(all, 1e3 * most, marks), says, legend };
  }

  // A round number of steps: 1, 2 or 5 times a power of ten.
  function ticks(most, count) {
    const rough = most / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((each) => each >= rough);
    return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
  }

  // ---- borders between buckets ----

  function drawBorders({ tokens, borders }, data) {
    const now = step(data, { tokens });
    const [most, marks] = data.axes[tokens];
    const ways = {
      "your buckets": bordered(now, borders),
      "DDP, 25 MiB": during(now, buckets(now)),
      "best possible": bordered(now, data.best[tokens]),
    };
    const passes = Object.entries(ways).flatMap(([name, done]) => pass(name, done, data.few));
    const all = [...gradients(now, ways["your buckets"].nbytes, most), ...passes];
    const [yours, ddp, best] = Object.values(ways).map(({ exposed }) => secondsText(exposed));
    const [own, others] = Object.values(ways).map(({ travels }) => travels.length);
    const says =
      `After backward the optimizer waits ${yours} for your ${own} buckets, ` +
      `${ddp} for DDP's ${others}, and ${best} at best.`;
    const axis = marks.map((at) => [at, `${at} ms`]);
    return { node: lanes(all, most, axis), says, legend: data.legend };
  }

  // All gradients over the whole width: blocks above, buckets below.
  function gradients(step, nbytes, most) {
    const sizes = [...gradient_bytes(step)].reverse();
    const sum = (all) => all.reduce((one, other) => one + other, 0);
    const each = most / sum(sizes);
    const inOrder = (all) => {
      let at = 0;
      return all.map((nbytes) => [each * at, each * (at += nbytes), "", nbytes]);
    };
    const { before, block, after } = step.sizes;
    const last = sizes.length - before.length;
    const ends = [0];
    for (let end = after.length; end <= last; end += block.length) ends.push(end);
    ends.push(sizes.length);
    const blocks = ends.slice(1).map((end, i) => sum(sizes.slice(ends[i], end)));
    const bars = inOrder(nbytes).map(([start, end, kind, own]) => [start, end, kind, (own / 1e9).toFixed(1)]);
    return [
      ["gradients", "GB per bucket, the last block first", "thin blocks", inOrder(blocks).map((bar) => bar.slice(0, 2))],
      ["", "", "buckets", bars],
    ];
  }

  // ---- FSDP's prefetch ----

  function drawPrefetch({ prefetch, time }, data) {
    const [took, spans, held, summary] = data.records[prefetch];
    const kinds = Object.keys(data.legend);
    const all = ["GPU", "network"].map((name, i) => [
      name, "", "",
      inFours(spans[i]).map(([start, end, kind, unit]) => [start, end, kinds[kind], `${unit}`]),
    ]);
    const { largest } = data;
    const bars = held.flatMap(([start, weights, gradients], i) => {
      const end = held[i + 1]?.[0] ?? took;
      const [low, high] = [weights / largest, (weights + gradients) / largest];
      return [
        ...(weights ? [[start, end, "weights", "", 0, low]] : []),
        ...(gradients ? [[start, end, "gradients", "", low, high]] : []),
      ];
    });
    all.push(["memory", `0 to ${Number(largest.toPrecision(3))} GB`, "tall", bars]);

    const at = (numbers) => inFours(numbers).find(([start, end]) => start <= time && time < end);
    const [span, moves] = spans.map(at);
    const [, weights, gradients] = held.findLast(([start]) => start <= time);
    const of = ([, , kind, unit]) => `${data.kinds[kind]} of ${unit === "R" ? "the root" : `unit ${unit}`}`;
    const now = [
      `the GPU ${span ? `computes ${of(span)}` : "waits"}`,
      `the network ${moves ? `does the ${of(moves)}` : "is idle"}`,
      `${(weights + gradients).toFixed(1)} GB are unsharded`,
    ];
    const says = `${time < took ? `At ${time} ms ${listed(now)}` : `At ${time} ms the step is over`}. ${summary}`;
    return { node: pointed(lanes(all, data.most, data.ticks), time, data), says, legend: data.legend };
  }

  show({ straggler: drawStraggler, overlap: drawOverlap, borders: drawBorders, prefetch: drawPrefetch });
})();
