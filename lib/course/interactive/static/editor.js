// Code that a reader edits and runs. What it means, Python says: here is the text box, and
// a report turned into nodes. `puzzles.js` loads this once a reader wants to edit.
(() => {
  "use strict";
  const { html, button, buildAll } = globalThis.minidistPlayer;
  const { kept, keep, lost, whenKept, load } = globalThis.minidistKept;
  const { starsOf } = globalThis.minidistPuzzles;
  const { lanes } = globalThis.minidistSliders;
  const colored = (code) => globalThis.minidistColored(code); // it may come after this file
  const LIMIT = 2000; // ms that what a reader wrote may run
  const PAUSE = 800; // ms without a key, after which it is tried

  // ---- Python, in a worker ----

  // What runs there may be somebody else's. The worker inherits this frame's policy, which shuts
  // the network, and its origin, which is nobody's and has nothing stored.
  const POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; worker-src blob:";
  const FRAME = `<meta http-equiv="Content-Security-Policy" content="${POLICY}"><script>
    onmessage = ({ data, ports: [port] }) => {
      const worker = new Worker(URL.createObjectURL(new Blob(data)));
      worker.onmessage = ({ data }) => port.postMessage({ said: data });
      worker.onerror = ({ message }) => port.postMessage({ failed: message });
      port.onmessage = ({ data }) => worker.postMessage(data);
    };</script>`;
  let python = null; // the promise of a frame with a worker, and of a port to it

  function start() {
    python ??= load("python.js").then(launch);
    python.catch(() => (python = null));
    return python;
  }

  function launch() {
    return new Promise((ready, failed) => {
      const frame = html("iframe", { sandbox: "allow-scripts", hidden: "", srcdoc: FRAME });
      const { port1: port, port2: inside } = new MessageChannel();
      port.onmessage = ({ data }) => {
        if (data.failed === undefined) return ready({ frame, port });
        frame.remove();
        failed(new Error(`Python does not start here: ${data.failed}`));
      };
      frame.onload = () => frame.contentWindow.postMessage(globalThis.minidistPython, "*", [inside]);
      document.body.append(frame);
    });
  }

  // One after the other: there is one Python, and an answer does not say to what.
  let last = Promise.resolve();
  function run(...call) {
    const report = last.then(() => runNow(...call));
    last = report.catch(() => {});
    return report;
  }

  async function runNow(source, task, limit) {
    const { frame, port } = await start();
    return new Promise((done) => {
      const stop = (why) => {
        frame.remove();
        python = null;
        start(); // so that the next run need not wait
        done({ right: false, stopped: true, says: [why], marks: [], output: "", more: 0 });
      };
      const endless = "It ran for two seconds, and was stopped. Is there a loop that never ends?";
      const timer = setTimeout(stop, limit, endless);
      port.onmessage = ({ data }) => {
        clearTimeout(timer);
        if (data.failed === undefined) done(JSON.parse(data.said));
        else stop(`Python stopped: ${data.failed}`);
      };
      port.postMessage(JSON.stringify([source, task]));
    });
  }

  // ---- a report, as nodes ----

  function marksOf(marks) {
    const item = ([text, earned]) => html("li", {}, starsOf(Number(earned), 1), ` ${text}`);
    return html("ul", { class: "marks" }, ...marks.map(item));
  }

  // What may be wider than a phone scrolls, by keys too.
  const scrolling = (name, ...children) =>
    html("div", { class: "wide", role: "group", tabindex: 0, "aria-label": name }, ...children);

  function tableOf({ caption, head, rows }) {
    const heads = head.map((text) => html(text ? "th" : "td", text ? { scope: "col" } : {}, text));
    const lines = rows.map(([name, ...values]) =>
      html("tr", {}, html("th", { scope: "row" }, name), ...values.map((text) => html("td", {}, text))));
    const table = html(
      "table", {},
      html("caption", {}, caption),
      html("thead", {}, html("tr", {}, ...heads)),
      html("tbody", {}, ...lines),
    );
    return scrolling("Prices", table);
  }

  // The figure of `minidist.plots.stepper`, which stepper.js draws.
  function stepperOf(trace) {
    const data = html("script", { type: "application/json" });
    data.textContent = JSON.stringify(trace);
    const rows = trace.said.map((said, step) => {
      const list = html("ul", {}, ...said.map((sentence) => html("li", {}, sentence)));
      return html("tr", {}, html("th", { scope: "row" }, step + 1), html("td", {}, list));
    });
    const heads = ["Step", "Messages"].map((name) => html("th", { scope: "col" }, name));
    const table = html("table", {}, html("thead", {}, html("tr", {}, ...heads)), html("tbody", {}, ...rows));
    const details = html("details", {}, html("summary", {}, "All steps as a table"), table);
    const size = ` ${trace.ranks} ranks, ${trace.steps} step${trace.steps === 1 ? "" : "s"}`;
    const caption = html("figcaption", {}, html("strong", {}, "Drawn"), size);
    return html("figure", { class: "minidist-widget schedule" }, caption, data, details);
  }

  function lanesOf({ end, rows }) {
    const short = (value) => Number(value.toPrecision(3));
    const said = ([name, blocks]) =>
      `${name}: ${blocks.map(([, from, to, text]) => `${text} from ${short(from)} to ${short(to)} ms`).join(", ")}`;
    const bars = (blocks) => blocks.map(([kind, from, to, text]) => [from, to, kind, text]);
    const drawn = lanes(rows.map(([name, blocks]) => [name, "", "", bars(blocks)]), end || 1);
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", rows.map(said).join("; "));
    return scrolling("Drawn", drawn);
  }

  function outputOf({ output, more }) {
    const rest = more ? `\n… and ${more.toLocaleString("en")} characters more` : "";
    return [html("p", { class: "head" }, "Printed"), html("pre", { tabindex: 0 }, output + rest)];
  }

  // ---- the editor ----

  const lineStart = (text, at) => text.lastIndexOf("\n", at - 1) + 1;

  // As typed: what stands before and after the cursor stays, and undo works.
  function type(box, text, from = box.selectionStart, to = box.selectionEnd) {
    box.setSelectionRange(from, to);
    document.execCommand(text ? "insertText" : "delete", false, text);
  }

  function indent(box, back) {
    const { selectionStart, selectionEnd, value } = box;
    if (!back && selectionStart === selectionEnd) {
      return type(box, " ".repeat(4 - ((selectionStart - lineStart(value, selectionStart)) % 4)));
    }
    const from = lineStart(value, selectionStart);
    const lines = value.slice(from, selectionEnd).split("\n");
    const changed = lines.map((line) => (back ? line.replace(/^ {1,4}/, "") : `    ${line}`)).join("\n");
    if (changed === lines.join("\n")) return;
    type(box, changed, from, selectionEnd);
    box.setSelectionRange(lines.length > 1 ? from : box.selectionEnd, box.selectionEnd);
  }

  class Editor {
    constructor(figure, controls) {
      const { name, stars } = figure.dataset;
      const data = JSON.parse(figure.querySelector("script").textContent); // task, stub
      Object.assign(this, { figure, name, stars: Number(stars), ...data });
      this.makeParts(controls);
      this.seen = this.stub; // what was kept when this box last heard of it
      whenKept("puzzles", () => this.follow());
      this.open(this.seen);
      this.box.focus();
      start().catch((error) => this.say(error.message));
    }

    get kept() {
      return kept("puzzles")[this.name] ?? {};
    }

    keep(values) {
      keep("puzzles", { [this.name]: { ...this.kept, ...values } });
    }

    open(code) {
      this.box.value = code;
      this.number();
    }

    // Another tab, an import, or a page that comes back: what is kept is newer than this box, which
    // would write over it with the next key. A box in which somebody has typed since stays as it is.
    follow() {
      const { code = this.stub, best } = this.kept;
      if (code !== this.seen && this.box.value === this.seen) this.open(code);
      this.seen = code;
      this.toBest.hidden = best === undefined || best === this.box.value;
    }

    makeParts(controls) {
      const keys = `keys-${this.name}`;
      const title = this.figure.querySelector("figcaption strong").textContent;
      this.box = html("textarea", {
        class: "code",
        "aria-label": `Code: ${title}`, "aria-describedby": keys,
        spellcheck: "false", autocapitalize: "off", autocomplete: "off", autocorrect: "off", wrap: "off",
      });
      this.gutter = html("pre", { class: "gutter", "aria-hidden": "true" });
      this.colors = html("code");
      const behind = html("pre", { class: "code behind highlight", "aria-hidden": "true" }, this.colors);
      this.box.oninput = () => this.typed();
      this.box.onscroll = () => this.scroll();
      this.box.onkeydown = (event) => this.press(event);
      const text = html("div", { class: "text" }, behind, this.gutter, this.box);
      const help = "Tab indents; Esc, then Tab, leaves the box. Ctrl+Enter runs.";
      this.said = html("div", { class: "verdict", role: "status" });
      this.result = html("div", { class: "result" });
      const run = button("Run", () => this.run());
      run.className = "run";
      this.now = html("span", { class: "now", "aria-live": "polite" });
      this.toBest = button("My best answer", () => this.replace(this.kept.best));
      controls.replaceChildren(run, button("Reset", () => this.reset()), this.toBest, this.now, ...this.chooser);
      controls.before(text, html("p", { class: "hint", id: keys }, help));
      controls.after(this.said, this.result);
    }

    // For how many ranks it is drawn.
    get chooser() {
      const { shows, show } = this.task;
      if (!shows) return [];
      const options = shows.map((ranks) => html("option", ranks === show ? { selected: "" } : {}, ranks));
      const list = html("select", {}, ...options);
      list.onchange = () => {
        this.task.show = Number(list.value);
        if (this.result.childElementCount) this.run();
      };
      return [html("label", {}, "Ranks shown ", list)];
    }

    typed() {
      this.number();
      this.keep({ code: this.box.value });
      clearTimeout(this.pause);
      if (!this.endless) this.pause = setTimeout(() => this.tryOut(), PAUSE);
    }

    scroll() {
      this.gutter.scrollTop = this.box.scrollTop;
      this.colors.style.transform = `translate(${-this.box.scrollLeft}px, ${-this.box.scrollTop}px)`;
    }

    // In a pause it is judged without a word on mistakes, of which unfinished code is full. What
    // never ends is tried once; then only Run tries again.
    async tryOut() {
      const code = this.box.value;
      if (this.running) return;
      const { right, stopped } = await run(code, this.task, this.limit).catch(() => ({}));
      this.endless = stopped;
      if (this.running || this.box.value !== code || right === undefined) return;
      const [good, bad] = ["✓ Right as it stands: press Run.", "Not yet, as it stands."];
      this.sayNow(right ? good : stopped ? "It does not end, as it stands. Press Run to go on." : bad);
    }

    // Said only if it has changed: a screen reader says it again each time.
    sayNow(text) {
      if (this.now.textContent !== text) this.now.textContent = text;
    }

    get limit() {
      return Number(this.figure.dataset.limit) || LIMIT;
    }

    number(wrong = 0) {
      this.colors.replaceChildren(...colored(this.box.value));
      const count = this.box.value.split("\n").length;
      const each = Array.from({ length: count }, (_, at) =>
        html("span", at + 1 === wrong ? { class: "wrong" } : {}, at + 1));
      this.gutter.replaceChildren(...each);
      this.box.rows = Math.min(Math.max(count, 4), 24);
    }

    press(event) {
      const { box } = this;
      const { key } = event;
      const leaving = this.leaving;
      if (key !== "Shift") this.leaving = key === "Escape";
      if (key === "Enter" && (event.ctrlKey || event.metaKey)) {
        this.run();
      } else if (key === "Tab" && !leaving) {
        indent(box, event.shiftKey);
      } else if (key === "Enter" && !event.isComposing) {
        const before = box.value.slice(lineStart(box.value, box.selectionStart), box.selectionStart);
        type(box, `\n${/^ */.exec(before)[0]}${/:\s*(#.*)?$/.test(before) ? "    " : ""}`);
      } else {
        return;
      }
      event.preventDefault();
    }

    // As typed, so that Ctrl+Z brings back what was there.
    replace(code) {
      this.box.focus();
      type(this.box, code, 0, this.box.value.length);
    }

    reset() {
      if (this.box.value === this.stub) return;
      this.replace(this.stub);
      this.say("This is the code to begin with. Ctrl+Z brings back yours.");
      this.result.replaceChildren();
    }

    say(...nodes) {
      this.said.replaceChildren(...nodes);
    }

    async run() {
      if (this.running) return;
      this.running = true;
      this.endless = false;
      clearTimeout(this.pause);
      this.sayNow("");
      this.number();
      this.say("Running …");
      this.result.replaceChildren();
      try {
        const code = this.box.value; // it may change before the report comes
        this.show(await run(code, this.task, this.limit), code);
      } catch (error) {
        this.say(error.message);
      }
      this.running = false;
    }

    show(report, code) {
      const earned = report.marks.filter(([, each]) => each).length;
      if (this.stars && report.right && earned > (this.kept.stars ?? 0)) {
        this.keep({ best: code, stars: earned });
      }
      const kind = report.right ? "right" : "wrong";
      const head = html("strong", { class: kind }, report.right ? "✓ Right. " : "✗ Not yet. ");
      const sentences = report.says.map((text) => html("p", {}, text));
      sentences[0].prepend(head, ...this.place(report.line));
      const marks = this.stars && report.marks.length ? [marksOf(report.marks)] : [];
      this.say(...sentences, ...marks, lost());
      this.result.replaceChildren(
        ...(report.table ? [tableOf(report.table)] : []),
        ...(report.drawn ? [stepperOf(report.drawn)] : []),
        ...(report.lanes ? [lanesOf(report.lanes)] : []),
        ...(report.output ? outputOf(report) : []),
      );
      buildAll();
    }

    // The line of an error, marked, and a button that leads there.
    place(line) {
      if (!line) return [];
      this.number(line);
      const to = button(`Line ${line}`, () => {
        const lines = this.box.value.split("\n");
        const from = lines.slice(0, line - 1).reduce((sum, before) => sum + before.length + 1, 0);
        this.box.focus();
        this.box.setSelectionRange(from, from + (lines[line - 1] ?? "").length);
      });
      to.className = "line";
      return [to, " "];
    }
  }

  globalThis.MinidistEditor = Editor;
})();
