// Pictures with sliders: what stands in a figure's JSON sets the controls, the library's Python, as
// compiled.js, computes, and bars.js, curves.js, timelines.js and searches.js draw. Harmless when loaded twice:
// the first copy stays, and a figure is built once.
globalThis.minidistSliders ??= (() => {
  "use strict";
  const { html, build } = globalThis.minidistPlayer;

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
  const LONG = [[86400, "days"], [3600, "hours"], [60, "minutes"]];
  function secondsText(value) {
    if (value === Infinity) return "forever";
    if (value === 0) return "0 s";
    const [factor, unit] = LONG.find(([least]) => value >= 2 * least) ?? [1, ""];
    return unit ? `${digits(value / factor).toLocaleString("en")} ${unit}` : scaled(value, "s", SHORT);
  }
  const tickText = (value) => (value ? scaled(value, "s", SHORT) : "0 s"); // of an axis
  const percentText = (part, whole) => `${Math.round((100 * part) / whole)}%`;
  // As people write it: 640, 8,192, 33.6 million.
  const countText = (value) =>
    value < 1e6 ? value.toLocaleString("en") : `${digits(value / 1e6).toLocaleString("en")} million`;
  const capital = (words) => words[0].toUpperCase() + words.slice(1);
  const listed = (names) => names.join(", ").replace(/, ([^,]*)$/, " and $1");

  // ---- lanes: bars from left to right, under a name ----

  // In percent, to two digits, without zeros around them.
  const share = (part, whole) =>
    `${((100 * part) / whole).toFixed(2).replace(/^0+|\.?0+$/g, "") || "0"}%`;

  // Lanes from 0 to `most`, in the HTML of course.interactive.timeline. Each is [name, note, kind, bars],
  // a bar [start, end, kind, text, low, high], and a mark of the axis below [where, text].
  function lanes(all, most, marks = []) {
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
    if (axis.length) rows.push(html("div", { class: "lane axis" }, ...axis));
    return html("div", { class: "lanes" }, ...rows);
  }

  // ---- a figure ----

  class Slider {
    // `pictureOf` turns (values, data, width) into { node, says, legend }: the picture, if there is
    // one, what is said below, and what its classes mean; also a `table` above it, if it has one. It
    // may ask, by its last argument, to be called again.
    constructor(figure, pictureOf) {
      Object.assign(this, { figure, pictureOf });
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.values = {};
      this.table = html("div", { class: "above" });
      this.picture = html("div", { class: "picture" });
      this.legend = html("p", { class: "legend" });
      this.said = html("p", { class: "said", role: "status" });
      const controls = html("div", { class: "knobs" }, ...this.data.controls.map((c) => this.knob(c)));
      if (this.data.borders) controls.append(this.borders(this.data.borders));
      figure.querySelector(".still, p").replaceWith(controls, this.table, this.picture, this.legend, this.said);
      figure.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes the arrow keys
      new ResizeObserver(() => this.width !== this.room && this.draw()).observe(figure);
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

    // Several thumbs on one track: borders between the gradients in the order in which backward makes
    // them. A border's value is how many gradients come before it; its place, how many bytes.
    borders({ name, label, about, page, start }) {
      const sizes = gradient_bytes(step(this.data, this.values));
      const stops = [0];
      for (const size of [...sizes].reverse()) stops.push(stops.at(-1) + size);
      const places = (this.values[name] = [...start]);
      const inputs = start.map((place, i) => {
        const range = { type: "range", min: 0, max: stops.at(-1), step: "any" };
        const input = html("input", { ...range, "aria-label": `${label} ${i + 1} of ${start.length}` });
        const put = (at) => {
          places[i] = Math.min(Math.max(at, 0), sizes.length);
          input.value = stops[places[i]];
          const words = `after ${places[i]} of ${sizes.length} gradients, ${bytesText(stops[places[i]])}`;
          input.setAttribute("aria-valuetext", words);
        };
        put(place);
        input.addEventListener("input", () => {
          const away = (at) => Math.abs(stops[at] - Number(input.value));
          put([...stops.keys()].reduce((one, other) => (away(other) < away(one) ? other : one)));
          this.draw();
        });
        const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -page, PageUp: page };
        input.addEventListener("keydown", (event) => {
          if (!(event.key in steps)) return;
          event.preventDefault();
          put(places[i] + steps[event.key]);
          this.draw();
        });
        return input;
      });
      return html("div", { class: "borders" }, html("span", { class: "what" }, about), ...inputs);
    }

    get room() {
      return Math.min(this.figure.clientWidth - 12, 680);
    }

    draw() {
      const width = (this.width = this.room);
      if (width <= 0) return; // not to be seen
      const { node, says, legend, table } = this.pictureOf(this.values, this.data, width, () => this.draw());
      for (const part of [this.table, this.picture]) part.classList.toggle("past", !node);
      if (node) {
        if (table && table !== this.table.firstChild) this.table.replaceChildren(table);
        const items = Object.entries(legend).map(([kind, words]) =>
          html("span", {}, html("i", { class: kind }), words));
        this.picture.replaceChildren(node);
        this.legend.replaceChildren(...items);
      }
      const shown = this.picture.firstChild; // or the last one, faint, so that the page stays still
      const title = this.figure.querySelector("figcaption").textContent;
      shown?.setAttribute("role", "img");
      shown?.setAttribute("aria-label", `${title}. ${says}`);
      if (this.said.textContent !== says) this.said.textContent = says;
    }
  }

  // Builds the figures of these kinds, each with its `pictureOf`.
  function show(kinds) {
    for (const [kind, pictureOf] of Object.entries(kinds)) {
      build(`slider[data-widget="${kind}"]`, (figure) => new Slider(figure, pictureOf));
    }
  }

  // The step of training that a figure is about.
  const { training } = globalThis.minidistModules["course.interactive.in_page"];
  const { gradient_bytes } = globalThis.minidistModules["minidist.formulas.memory"];
  const step = ({ model, gpu, each, gpus }, { tokens, cap, card = gpu.network, ranks = gpus }) =>
    training(model, tokens, { ...gpu, network: card }, each, ranks, cap);

  return {
    lanes, share, bytesText, sizeText, secondsText, tickText, percentText, countText, capital, listed,
    step, show,
  };
})();
