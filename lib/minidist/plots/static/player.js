// What is played step by step: controls, keys, sentences, and lists to choose among several. Harmless
// when loaded twice: the first copy stays, and a figure is built only once, also if a notebook
// inserts it long after the page loaded.
globalThis.minidistPlayer ??= (() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const html = (tag, attributes = {}, ...children) =>
    fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS(SVG, tag), attributes, children);
  const button = (name, onclick) => Object.assign(html("button", { type: "button" }, name), { onclick });

  const copies = (nodes) => nodes.map((node) => node.cloneNode(true));

  const players = new Set();

  class Player {
    // `parts` has what is to be played:
    //   picture, extras: nodes above the controls, and more controls
    //   draw(position): shows the picture after so many steps; returns what stands beside the number
    //   aside: about as much as that, as text
    //   beginning: words in place of "Step 2 of 6" before the first step
    //   says: for each position, the nodes below
    //   phases: [name, number of steps]
    //   scroller: a node that needs the arrow keys itself
    constructor(figure, parts) {
      Object.assign(this, { figure, phases: [], extras: [], aside: "", ...parts });
      this.steps = parts.says.length - 1;
      this.position = 0; // how many steps are done
      this.timer = null;
      this.details = figure.querySelector("details");
      this.makeParts();
      this.pause();
      this.show();
      players.add(this);
    }

    makeParts() {
      const { figure, steps } = this;
      this.back = button("Back", () => this.jump(this.position - 1));
      this.playing = button("Play", () => this.toggle());
      this.next = button("Next", () => this.jump(this.position + 1));
      this.slider = html("input", { type: "range", min: 0, max: steps, value: 0, "aria-label": "Step" });
      this.slider.oninput = () => this.jump(Number(this.slider.value));
      this.said = html("div", { class: "said", role: "status" });
      this.named = this.phases.map(([name, count]) => html("span", { style: `flex: ${Number(count)}` }, name));
      const strip = html("div", { class: "phases", "aria-hidden": "true" }, ...this.named);
      const along = html("div", { class: "along" }, this.slider, strip);
      const controls = [this.back, this.playing, this.next, ...this.extras, along];
      const bar = html("div", { class: "controls" }, ...controls);
      const words = html("div", { class: "words" }, this.said, ...this.unseen);
      this.details.before(...this.picture, bar, words);
      this.details.open = false;
      figure.tabIndex = -1; // a click anywhere in it gives it the keys
      figure.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes the arrow keys
      figure.addEventListener("keydown", (event) => this.press(event));
    }

    // All that is said, unseen in the same place, so that nothing below moves from step to step.
    get unseen() {
      return this.says.map((nodes, position) => {
        const aside = html("span", { class: "aside" }, this.aside);
        const head = html("p", {}, ...this.headOf(position), " ", aside);
        return html("div", { class: "unseen", "aria-hidden": "true" }, head, ...copies(nodes));
      });
    }

    // "Step 2 of 6: all-gather, step 1 of 3"
    headOf(position) {
      const phase = this.phaseOf(position);
      const where = position ? `Step ${position} of ${this.steps}` : this.beginning;
      const named = phase ? [`: ${phase.name}, step ${phase.step} of ${phase.steps}`] : [];
      return [html("strong", {}, where), ...named];
    }

    go(to) {
      this.position = Math.min(Math.max(to, 0), this.steps);
      if (this.position === this.steps) this.pause();
      this.show();
    }

    jump(to) {
      this.touched = true;
      this.pause();
      this.go(to);
    }

    pause() {
      clearInterval(this.timer);
      this.timer = null;
      this.playing.textContent = "Play";
      this.said.setAttribute("aria-live", "polite");
    }

    toggle() {
      if (this.timer !== null) return this.pause();
      this.touched = true;
      const advance = () => (this.shown ? this.go(this.position + 1) : this.pause());
      this.timer = setInterval(advance, Number(this.figure.dataset.interval) || 1500);
      this.playing.textContent = "Pause";
      this.said.setAttribute("aria-live", "off"); // a voice cannot keep up with a film
      this.go(this.position === this.steps ? 0 : this.position + 1);
    }

    press(event) {
      if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
      const actions = {
        ArrowLeft: () => this.jump(this.position - 1),
        ArrowRight: () => this.jump(this.position + 1),
        Home: () => this.jump(0),
        End: () => this.jump(this.steps),
        " ": () => this.toggle(),
      };
      const presses = event.key === " " && event.target.matches("button, summary");
      const scrolls = event.key !== " " && event.target === this.scroller;
      if (!(event.key in actions) || presses || scrolls) return;
      event.preventDefault();
      event.stopPropagation();
      actions[event.key]();
    }

    get shown() {
      return this.figure.isConnected && !this.figure.hidden;
    }

    // Pixels of its height that can be seen, if that is half of it or half of the window.
    get seen() {
      const { top, bottom } = this.figure.getBoundingClientRect();
      const seen = Math.min(bottom, innerHeight) - Math.max(top, 0);
      return 2 * seen >= Math.min(bottom - top, innerHeight) ? seen : 0;
    }

    // The phase of a step, as one of `phases`, and which of its steps it is.
    phaseOf(position) {
      let step = position;
      for (const [index, [name, steps]] of this.phases.entries()) {
        if (0 < step && step <= steps) return { index, name, step, steps };
        step -= steps;
      }
      return null;
    }

    show() {
      const { position, steps } = this;
      const beside = this.draw(position);
      const phase = this.phaseOf(position);
      this.slider.value = position;
      const done = `after step ${position} of ${steps}${phase ? `, ${phase.name}` : ""}`;
      const start = this.beginning[0].toLowerCase() + this.beginning.slice(1);
      this.slider.setAttribute("aria-valuetext", position ? done : start);
      // Not `disabled`: that would take the focus, and the keys with it, away.
      this.back.setAttribute("aria-disabled", position === 0);
      this.next.setAttribute("aria-disabled", position === steps);
      this.named.forEach((each, index) => each.classList.toggle("now", index === phase?.index));
      this.said.replaceChildren(html("p", {}, ...this.headOf(position), ...beside), ...copies(this.says[position]));
    }
  }

  // Arrow keys that go nowhere else step what the pointer is over, or what fills the window most.
  document.addEventListener("keydown", (event) => {
    const free = event.target === document.body || event.target === document.documentElement;
    if (!free || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    for (const player of players) if (!player.figure.isConnected) players.delete(player);
    const shown = [...players].filter((player) => player.shown);
    const most = (one, other) => (other.seen > (one?.seen ?? 0) ? other : one);
    const player = shown.find(({ figure }) => figure.matches(":hover")) ?? shown.reduce(most, null);
    player?.press(event);
  });

  // ---- one of several, by lists to choose from ----

  function choose(box) {
    if ("ready" in box.dataset) return;
    box.dataset.ready = "";
    const figures = [...box.querySelectorAll(":scope > figure")];
    const keys = figures.map((figure) => JSON.parse(figure.dataset.choice));
    const labels = JSON.parse(box.dataset.labels);
    const lists = labels.map((_, place) => {
      const options = [...new Set(keys.map((key) => key[place]))];
      return html("select", {}, ...options.map((option) => html("option", {}, option)));
    });
    const show = (at) => {
      keys[at].forEach((value, place) => (lists[place].value = value));
      figures.forEach((figure, number) => (figure.hidden = number !== at));
      buildAll();
    };
    lists.forEach((list, changed) => {
      list.onchange = () => {
        const exact = keys.findIndex((key) => key.every((value, i) => value === lists[i].value));
        show(exact >= 0 ? exact : keys.findIndex((key) => key[changed] === list.value));
      };
    });
    const named = labels.map((label, place) => html("label", {}, `${label} `, lists[place]));
    box.prepend(html("p", { class: "chooser" }, ...named));
    show(0);
  }

  // ---- the first of a page moves once by itself, when a reader comes to it ----

  function invite() {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || !document.querySelector(".bd-article")) return; // a page of the book
    const before = (one, other) =>
      one.figure.compareDocumentPosition(other.figure) & Node.DOCUMENT_POSITION_FOLLOWING;
    const [first] = [...players].filter((player) => player.shown).sort((a, b) => (before(a, b) ? -1 : 1));
    if (!first) return;
    const watch = new IntersectionObserver(
      () => {
        if (!first.touched && !first.seen) return;
        watch.disconnect();
        if (!first.touched) first.toggle();
      },
      { threshold: [0.1, 0.3, 0.5, 0.7, 0.9, 1] },
    );
    watch.observe(first.figure);
  }
  window.addEventListener("load", invite);

  // ---- all that is there ----

  const kinds = {};

  function buildAll() {
    for (const box of document.querySelectorAll(".minidist-widget.choices:not([data-ready])")) {
      choose(box);
    }
    for (const [kind, make] of Object.entries(kinds)) {
      const all = `.minidist-widget.${kind}:not([data-ready], [hidden])`;
      for (const figure of document.querySelectorAll(all)) {
        figure.dataset.ready = "";
        make(figure);
      }
    }
  }

  // Makes the figures of a kind, a selector, now, and when others of it appear.
  function build(kind, make) {
    kinds[kind] ??= make;
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", buildAll);
    else buildAll();
  }

  return { Player, html, svg, button, build, buildAll };
})();
