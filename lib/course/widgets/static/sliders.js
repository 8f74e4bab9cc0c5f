// Pictures with sliders: what stands in a figure's JSON sets the controls, formulas.js computes, and
// this draws. Harmless when loaded twice: a figure is built by the first copy that finds it.
(() => {
  "use strict";
  const { stateBytes, price, best, crossings, overlap, algorithms, strategies } =
    globalThis.minidistFormulas;
  const SVG = "http://www.w3.org/2000/svg";
  let figures = 0; // so that each has patterns of its own

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const html = (tag, attributes = {}, ...children) =>
    fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS(SVG, tag), attributes, children);
  const text = (x, y, words, kind = "") => svg("text", { x, y, class: kind }, words);
  const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
  const rect = (x, y, width, height, kind) => svg("rect", { x, y, width, height, class: kind });

  // ---- numbers as words ----

  const digits = (value) => (value >= 100 ? Math.round(value) : Number(value.toPrecision(3)));
  function scaled(value, unit, scale) {
    const [factor, prefix] = scale.find(([least]) => value >= least) ?? [1, ""];
    return `${digits(value / factor).toLocaleString("en")} ${prefix}${unit}`;
  }
  const SI = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const bytesText = (value) => scaled(value, "B", SI);
  const BINARY = [[2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"], [1, ""]];
  const sizeText = (value) => scaled(value, "B", BINARY);
  const SHORT = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
  const secondsText = (value) =>
    value === Infinity ? "forever" : value === 0 ? "0 s" : scaled(value, "s", SHORT);
  const capital = (words) => words[0].toUpperCase() + words.slice(1);
  const listed = (names) => names.join(", ").replace(/, ([^,]*)$/, " and $1");

  // A round number of steps: 1, 2 or 5 times a power of ten.
  function ticks(most, count) {
    const rough = most / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((each) => each >= rough);
    return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
  }

  // ---- the state of a model, per rank ----

  const PARTS = { weights: "parameters", gradients: "gradients", optimizer: "optimizer state" };

  function drawState({ parameters, ranks = 1, policy }, data, width, figure) {
    const held = data.stages.map((_, stage) => stateBytes(parameters, data.each[policy], ranks, stage));
    const [most, limit] = [Math.max(...held.map(({ total }) => total)), data.limit];
    const wide = most < limit / 8 ? most * 1.05 || 1 : Math.min(Math.max(most, limit) * 1.05, limit * 4);
    const [left, right, row, top] = [58, width - 12, 46, 26];
    const height = top + data.stages.length * row;
    const x = (nbytes) => left + (Math.min(nbytes, wide) / wide) * (right - left);
    const nodes = held.flatMap((each, stage) => {
      const y = top + stage * row;
      let from = 0;
      const bars = Object.keys(PARTS).flatMap((part) => {
        const [start, end] = [x(from), x((from += each[part]))];
        const kinds = ["fill", "hatch"];
        return kinds.map((kind) =>
          svg("rect", {
            x: start, y, width: Math.max(0, end - start), height: 20, class: `${kind} ${part}`,
            ...(kind === "hatch" && { style: `fill: url(#${figure}-${part})` }),
          }),
        );
      });
      const cut = each.total > wide ? [svg("path", { class: "cut", d: `M${right} ${y - 2}l-6 8 6 8-6 8` })] : [];
      const label = each.total > wide ? `${bytesText(each.total)}, off the scale` : bytesText(each.total);
      const fits = x(each.total) + 8 * label.length < right;
      const at = fits ? x(each.total) + 5 : right;
      const total = text(at, fits ? y + 15 : y + 35, label, fits ? "" : "end");
      return [text(0, y + 15, data.stages[stage], "strong"), ...bars, ...cut, total];
    });
    const marks = limit <= wide
      ? [line(x(limit), 18, x(limit), height, "limit"), text(Math.min(x(limit), width - 60), 12, `${bytesText(limit)} of one GPU`, "middle")]
      : [text(right, 12, `${bytesText(limit)} is far off to the right`, "end")];
    const patterns = Object.keys(PARTS).map((part) => patternOf(figure, part));
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
    return { height, nodes: [svg("defs", {}, ...patterns), ...nodes, ...marks], says, legend: PARTS };
  }

  // Hatches, as in the book's figures, so that parts differ without their colours too.
  function patternOf(figure, part) {
    const attributes = { id: `${figure}-${part}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" };
    const shapes = {
      weights: [],
      gradients: [svg("path", { class: "stroke", d: "M-1 7L7-1M-1 1L1-1M5 7L7 5" })],
      optimizer: [svg("circle", { class: "dot", cx: 3, cy: 3, r: 1.1 })],
    };
    return svg("pattern", attributes, ...shapes[part]);
  }

  // ---- curves of all-reduces ----

  const [SMALLEST, LARGEST] = [2 ** 4, 2 ** 34]; // bytes

  function drawCurves({ ranks, alpha, bandwidth }, data, width) {
    const link = { alpha, beta: 1 / bandwidth };
    const { names } = data;
    if (ranks === 1) return word("One rank has nobody to sum with: every all-reduce takes 0 s.");
    if (!bandwidth) return word("With no bandwidth nothing ever arrives: every all-reduce takes forever.");
    const all = algorithms.flatMap((name) => [SMALLEST, LARGEST].map((size) => price(name, ranks, size, link)));
    const [low, high] = [Math.floor(Math.log10(Math.min(...all))), Math.ceil(Math.log10(Math.max(...all)))];
    const [left, right, top, bottom] = [50, width - 10, 40, 300];
    const span = Math.log2(LARGEST / SMALLEST);
    const x = (size) => left + (Math.log2(size / SMALLEST) / span) * (right - left);
    const y = (seconds) => bottom - ((Math.log10(seconds) - low) / (high - low)) * (bottom - top);
    const grid = [];
    for (let power = low; power <= high; power += Math.ceil((high - low) / 7)) {
      grid.push(line(left, y(10 ** power), right, y(10 ** power), "grid"));
      grid.push(text(left - 6, y(10 ** power) + 4, secondsText(Number(`1e${power}`)), "end"));
    }
    for (const [power, name] of [[10, "1 KiB"], [20, "1 MiB"], [30, "1 GiB"]]) {
      grid.push(line(x(2 ** power), top, x(2 ** power), bottom, "grid"));
      grid.push(text(x(2 ** power), bottom + 34, name, "middle"));
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
      const label = room ? [text((from + to) / 2, bottom + 17, names[name], "middle small")] : [];
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
    return { height: bottom + 42, nodes: [...grid, ...bucket, ...bands, ...lines, ...marks], says, legend: names };
  }

  // Where there is nothing to draw.
  const word = (says) => ({ height: 0, nodes: [], says, legend: {} });

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
      text(x(at), height - 4, secondsText(at), at ? "middle" : ""),
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
          `during it ${secondsText(hidden)}: ${Math.round(100 * (total ? 1 - hidden / total : 1))} % of the communication is hidden.`;
    const legend = { backward: "backward", communication: "all-reduce" };
    const end = line(x(backward), 0, x(backward), height - 18, "limit");
    return { height, nodes: [...axis, ...lanes, end], says, legend };
  }

  // ---- a figure ----

  const DRAW = { state: drawState, curves: drawCurves, overlap: drawOverlap };

  class Slider {
    constructor(figure) {
      this.figure = figure;
      this.name = `minidist-${(figures += 1)}-${Math.random().toString(36).slice(2)}`;
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.values = {};
      this.picture = html("div", { class: "picture" });
      this.legend = html("p", { class: "legend" });
      this.said = html("p", { class: "said", role: "status" });
      const controls = html("div", { class: "knobs" }, ...this.data.controls.map((c) => this.knob(c)));
      const details = figure.querySelector("details");
      details.before(controls, this.picture, this.legend, this.said);
      details.open = false;
      figure.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes the arrow keys
      new ResizeObserver(() => this.draw()).observe(figure);
      this.draw();
    }

    knob({ name, label, values, texts, index, choose }) {
      const shown = html("b", {}, texts[index]);
      const range = { type: "range", min: 0, max: values.length - 1, step: 1 };
      const options = texts.map((each, i) => html("option", { value: i }, each));
      const input = choose ? html("select", {}, ...options) : html("input", range);
      input.setAttribute("aria-label", label);
      input.value = index;
      const change = () => {
        const at = Number(input.value);
        this.values[name] = values[at];
        shown.textContent = texts[at];
        if (!choose) input.setAttribute("aria-valuetext", texts[at]);
      };
      input.addEventListener("input", () => (change(), this.draw()));
      change();
      const head = html("span", { class: "what" }, label, ...(choose ? [] : [" ", shown]));
      return html("label", {}, head, input);
    }

    draw() {
      const width = Math.min(this.figure.clientWidth - 12, 680);
      if (width <= 0) return; // not to be seen
      const draw = DRAW[this.figure.dataset.widget];
      const { height, nodes, says, legend } = draw(this.values, this.data, width, this.name);
      const title = this.figure.querySelector("figcaption").textContent;
      const attributes = { role: "img", "aria-label": `${title}. ${says}`, width, height };
      this.picture.replaceChildren(...(height ? [svg("svg", attributes, ...nodes)] : []));
      const items = Object.entries(legend).map(([kind, words]) =>
        html("span", {}, html("i", { class: kind }), words));
      this.legend.replaceChildren(...items);
      if (this.said.textContent !== says) this.said.textContent = says;
    }
  }

  function buildAll() {
    for (const figure of document.querySelectorAll(".minidist-widget.slider:not([data-ready])")) {
      figure.dataset.ready = "";
      new Slider(figure);
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", buildAll);
  else buildAll();
})();
