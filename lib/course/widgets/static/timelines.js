// Lanes over time that a reader changes: a rank that is late or dies, borders between buckets, and
// FSDP's prefetch. What happens in them Python has simulated, or does in the page; the HTML is that of
// course.widgets.timeline.
(() => {
  "use strict";
  const { bordered, during, gradient_bytes } = globalThis.minidistModules["course.widgets.in_page"];
  const { buckets } = globalThis.minidistModules["minidist.formulas.memory"];
  const { html, secondsText, listed, step, show } = globalThis.minidistSliders;

  // In percent, to two digits, without zeros around them.
  const share = (part, whole) =>
    `${((100 * part) / whole).toFixed(2).replace(/^0+|\.?0+$/g, "") || "0"}%`;

  // A bar: [start, end, kind, text, low, high]; a lane: [name, note, kind, bars].
  function lanes(all, most, marks) {
    const bar = ([start, end, kind, words = "", low = 0, high = 1]) => {
      const place = `left:${share(start, most)};width:${share(end - start, most)}`;
      const part = high - low === 1 ? "" : `;bottom:${share(low, 1)};height:${share(high - low, 1)}`;
      return html("i", { ...(kind && { class: kind }), style: place + part }, words);
    };
    const rows = all.flatMap(([name, note, kind, bars]) => [
      ...(name ? [html("p", {}, html("b", {}, name), note && ` · ${note}`)] : []),
      html("div", { class: `lane ${kind}`.trim() }, ...bars.map(bar)),
    ]);
    const axis = marks.map(([at, words]) => html("b", { style: `left:${share(at, most)}` }, words));
    return html("div", { class: "lanes" }, ...rows, html("div", { class: "lane axis" }, ...axis));
  }

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
    const states = new Map(); // [of one, of several] → ranks
    ranks.forEach(([, ...numbers], i) => {
      const parts = inFours(numbers);
      const [kind, start, , about] = parts.find((part) => time < part[2]) ?? parts.at(-1);
      const over = kind === 1 && time >= parts.at(-1)[2];
      const step = `in step ${about + Math.floor((time - start) / data.message) + 1} of ${data.steps}`;
      const words = over
        ? ["has the sum", "have the sum"]
        : [["computes", "compute"], [`is ${step}`, `are ${step}`],
           [`waits for rank ${about}`, `wait for rank ${about}`], ["is dead"]][kind];
      states.set(words[0], [words, [...(states.get(words[0])?.[1] ?? []), i]]);
    });
    const each = [...states.values()].map(([[one, several], who]) =>
      who.length > 1 ? `ranks ${listed(who)} ${several}` : `rank ${who[0]} ${one}`);
    const diagnosis = data.diagnoses[said.findLast(([from]) => from <= time)[1]];
    const says = `${time} ms: ${each.join("; ")}. minidist.diagnose says: “${diagnosis}”.`;
    const picture = pointed(lanes(all, data.most, data.ticks), time, data);
    return { node: picture, says, legend: data.legend };
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

    // The gradients over the whole width: blocks above, buckets below.
    const sizes = [...gradient_bytes(now)].reverse();
    const sum = (all) => all.reduce((one, other) => one + other, 0);
    const inOrder = (all) => {
      const each = most / sum(sizes);
      let at = 0;
      return all.map((nbytes) => [each * at, each * (at += nbytes), nbytes]);
    };
    const { before, block, after } = now.sizes;
    const last = sizes.length - before.length;
    const ends = [0];
    for (let end = after.length; end <= last; end += block.length) ends.push(end);
    ends.push(sizes.length);
    const blocks = ends.slice(1).map((end, i) => sum(sizes.slice(ends[i], end)));
    const all = [
      ["gradients", "GB per bucket, the last block first", "thin blocks",
       inOrder(blocks).map(([start, end]) => [start, end])],
      ["", "", "buckets", inOrder(ways["your buckets"].nbytes)
        .map(([start, end, nbytes]) => [start, end, "", (nbytes / 1e9).toFixed(1)])],
    ];

    const late = Object.entries(ways).map(([name, { backward, travels, full, exposed }]) => {
      const [count, few] = [travels.length, travels.length <= data.few];
      const note = `${count} all-reduce${count > 1 ? "s" : ""} · ${secondsText(exposed)} exposed`;
      const parts = few ? full.slice(0, count).map((end, i) => [i ? full[i - 1] : 0, end]) : [[0, backward]];
      all.push([name, note, "thin backward", parts.map(([start, end]) => [1e3 * start, 1e3 * end])]);
      const bars = travels.map(([start, end]) => [1e3 * start, 1e3 * end]);
      all.push(["", "", `thin communication${few ? "" : " dense"}`, bars]);
      return secondsText(exposed);
    });
    const many = Object.values(ways).map(({ travels }) => travels.length);
    const says =
      `After backward the optimizer waits ${late[0]} for your ${many[0]} buckets, ` +
      `${late[1]} for DDP's ${many[1]}, and ${late[2]} at best.`;
    const axis = marks.map((at) => [at, `${at} ms`]);
    return { node: lanes(all, most, axis), says, legend: data.legend };
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
    const of = ([, , kind, unit]) => `${data.kinds[kind]} of ${unit === "root" ? "the root" : `unit ${unit}`}`;
    const now = [
      `the GPU ${span ? `computes ${of(span)}` : "waits"}`,
      `the network ${moves ? `does the ${of(moves)}` : "is idle"}`,
      `${(weights + gradients).toFixed(1)} GB are unsharded`,
    ];
    const says = `${time < took ? `At ${time} ms ${listed(now)}` : `At ${time} ms the step is over`}. ${summary}`;
    return { node: pointed(lanes(all, data.most, data.ticks), time, data), says, legend: data.legend };
  }

  show({ straggler: drawStraggler, borders: drawBorders, prefetch: drawPrefetch });
})();
