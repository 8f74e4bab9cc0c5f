// Plays a communication schedule. Each figure brings its trace as JSON and its sentences as a
// table; this adds the picture, and player.js the controls.
(() => {
  "use strict";
  const { Player, html, svg, button, build } = globalThis.minidistPlayer;
  const HEAD = 6; // px, length of an arrowhead
  const LANE = 5; // px between arrows that run side by side
  const MARKS = { right: ["✓", "complete"], wrong: ["✗", "a rank is counted twice"] };

  // ---- the trace ----

  function messagesOf({ steps, events, numbers }) {
    const all = events.map(([step, src, dst, chunk, reduce, , result], index) => {
      const [low, high] = [Math.min(src, dst), Math.max(src, dst)];
      const number = numbers.results[index];
      return { step, src, dst, chunk, reduce, result, number, low, high, down: dst > src };
    });
    return Array.from({ length: steps }, (_, step) => all.filter((m) => m.step === step));
  }

  // states[k][rank][chunk] after k steps: the contributors, or with "number" their sum
  function statesOf(start, steps, what = "result") {
    const states = [start];
    for (const messages of steps) {
      const state = states.at(-1).map((row) => row.slice());
      for (const message of messages) state[message.dst][message.chunk] = message[what];
      states.push(state);
    }
    return states;
  }

  function verdict(contributors, goal) {
    if (new Set(contributors).size < contributors.length) return "wrong";
    return goal !== null && goal.join() === contributors.join() ? "right" : "";
  }

  // Messages that pass other ranks run beside the cells, each in a lane of its own; but those of
  // one sender share a lane, as branches of one line. Returns how many lanes lie side by side.
  function assignLanes(messages) {
    const used = { true: 0, false: 0 };
    const far = messages.filter(({ low, high }) => high - low > 1);
    far.forEach((m, index) => {
      const beside = (o) =>
        o.chunk === m.chunk && o.down === m.down && o.low <= m.high && m.low <= o.high;
      const others = far.slice(0, index).filter((o) => o.src !== m.src && beside(o));
      m.lane = 0;
      while (others.some((o) => o.lane === m.lane)) m.lane += 1;
      used[m.down] = Math.max(used[m.down], m.lane + 1);
    });
    return used.true + used.false;
  }

  // ---- the picture ----

  const hue = (rank) => `--hue: var(--rank-${rank % 8})`;

  function cellsOf(ranks, chunks) {
    const cell = () => {
      const segments = Array.from({ length: ranks }, (_, rank) => html("i", { style: hue(rank) }));
      const sum = html("div", { class: "sum" }, html("span"));
      const number = html("div", { class: "number" });
      return html("div", { role: "cell" }, html("div", { class: "bar" }, ...segments), sum, number);
    };
    return Array.from({ length: ranks }, () => Array.from({ length: chunks }, cell));
  }

  function boardOf(cells, arrows) {
    const corner = html("span", { role: "cell" });
    const head = (chunk) => html("span", { role: "columnheader" }, `chunk ${chunk}`);
    const heads = cells[0].map((_, chunk) => head(chunk));
    const rows = cells.map((row, rank) => {
      const head = html("span", { role: "rowheader" }, `rank ${rank}`);
      return html("div", { role: "row", class: "rank", style: hue(rank) }, head, ...row);
    });
    const table = html(
      "div",
      { role: "table", "aria-label": "What each rank holds" },
      html("div", { role: "row", class: "chunks" }, corner, ...heads),
      ...rows,
    );
    return html("div", { class: "board" }, table, arrows);
  }

  function showCell(cell, contributors, number, state) {
    const segments = cell.querySelectorAll("i");
    segments.forEach((segment, rank) => {
      const times = contributors.filter((other) => other === rank).length;
      segment.className = ["", "in"][times] ?? "in twice";
    });
    cell.title = contributors.join("+");
    // A long sum would not fit; the bar still shows who is in. A line may break after a plus.
    const long = `${new Set(contributors).size} of ${segments.length}`;
    const text = cell.title.length > 15 ? long : cell.title || "empty";
    const pieces = text.split(/(?<=\+)/).flatMap((piece) => [html("wbr"), piece]);
    cell.querySelector(".sum span").replaceChildren(...pieces);
    cell.querySelector(".number").textContent = number ?? "";
    cell.querySelector("b")?.remove();
    if (!state) return;
    const [sign, meaning] = MARKS[state];
    cell.firstChild.append(html("b", { role: "img", "aria-label": meaning }, sign));
  }

  // Neighbours: straight from cell to cell; side by side with an arrow that goes the other way.
  function straight({ down }, from, to, answered) {
    const way = down ? 1 : -1;
    const [start, end] = down ? [from.bottom, to.top] : [from.top, to.bottom];
    const x = (from.left + from.right) / 2 - (answered ? 7 * way : 0);
    return {
      line: `M${x} ${start}V${end - HEAD * way}`,
      head: `M${x} ${end}l-4 ${-HEAD * way}h8z`,
      label: { x: x - (answered ? 9 * way : -9), y: (start + end) / 2 },
    };
  }

  // Far apart: out of the cell's side, along a lane, and into the other cell's side; downwards on
  // the left, upwards on the right.
  function detour({ down, lane }, from, to) {
    const way = down ? 1 : -1;
    const edge = down ? from.left : from.right;
    const [start, end] = [from, to].map(({ top, bottom }) => (top + bottom) / 2);
    const stop = end - 5 * way; // above what leaves the same cell
    const out = -way * (HEAD + 1 + LANE * lane);
    const [bend, turn] = [out / 2, 5 * way];
    const leave = `M${edge} ${start}h${bend}q${bend} 0 ${bend} ${turn}`;
    const arrive = `V${stop - turn}q0 ${turn} ${-bend / 2} ${turn}H${edge - HEAD * way}`;
    return {
      line: leave + arrive,
      head: `M${edge} ${stop}l${-HEAD * way} -4v8z`,
      label: { x: edge + out - 8 * way, y: (down ? to.top : to.bottom) - 13 * way },
    };
  }

  function drawArrows(arrows, messages, cells) {
    const box = ({ offsetLeft: left, offsetTop: top, offsetWidth, offsetHeight }) => {
      return { left, right: left + offsetWidth, top, bottom: top + offsetHeight };
    };
    const isAnswer = (m) => (o) => o.src === m.dst && o.dst === m.src && o.chunk === m.chunk;
    const arrow = (m) => {
      const ends = [box(cells[m.src][m.chunk]), box(cells[m.dst][m.chunk])];
      const shape = m.lane === undefined ? straight : detour;
      const { line, head, label } = shape(m, ...ends, messages.some(isAnswer(m)));
      return svg(
        "g",
        { class: m.reduce ? "adds" : "overwrites" },
        svg("path", { class: "line", d: line }),
        svg("path", { class: "head", d: head }),
        svg("text", label, m.reduce ? "+" : "="),
      );
    };
    arrows.replaceChildren(...messages.map(arrow));
  }

  function legendOf(steps, states) {
    const messages = steps.flat();
    const twice = states.flat(2).some((contributors) => verdict(contributors, null) === "wrong");
    const items = [
      [messages.some((m) => m.reduce), "+", "the receiver adds"],
      [messages.some((m) => !m.reduce), "=", "the receiver overwrites"],
      [true, ...MARKS.right],
      [twice, ...MARKS.wrong],
    ];
    const shown = items.filter(([used]) => used);
    return html(
      "p",
      { class: "legend" },
      ...shown.map(([, sign, meaning]) => html("span", {}, html("b", {}, sign), ` ${meaning}`)),
    );
  }

  // The cells, and the arrows of one step above them.
  class Board {
    constructor({ ranks, chunks }) {
      this.cells = cellsOf(ranks, chunks);
      this.arrows = svg("svg", { "aria-hidden": "true" });
      this.messages = [];
      const board = boardOf(this.cells, this.arrows);
      this.scroller = html("div", { class: "scroller" }, board);
      this.scroller.onscroll = () => this.hint();
      new ResizeObserver(() => this.fit()).observe(board);
    }

    // What is held, of each cell: contributors, number, verdict; and the messages that led there.
    show(held, messages) {
      this.messages = messages;
      this.cells.forEach((row, rank) =>
        row.forEach((cell, chunk) => {
          const received = messages.some((m) => m.dst === rank && m.chunk === chunk);
          const state = held[rank][chunk].at(-1);
          showCell(cell, ...held[rank][chunk]);
          cell.className = ["held", state, received ? "received" : ""].join(" ").trim();
        }),
      );
      drawArrows(this.arrows, messages, this.cells);
    }

    fit() {
      const scrolls = this.scroller.scrollWidth > this.scroller.clientWidth;
      const reach = { tabindex: 0, role: "group", "aria-label": "Picture, scrolls sideways" };
      for (const [name, value] of Object.entries(reach)) {
        if (scrolls) this.scroller.setAttribute(name, value);
        else this.scroller.removeAttribute(name);
      }
      this.hint();
      drawArrows(this.arrows, this.messages, this.cells);
    }

    // What goes on to the right fades out there.
    hint() {
      const { scrollWidth, clientWidth, scrollLeft } = this.scroller;
      this.scroller.classList.toggle("more", scrollWidth - clientWidth - scrollLeft > 1);
    }
  }

  // ---- what is played ----

  // How to go on, and faintly what comes.
  function opening([first]) {
    if (!first) return [];
    const how = "Press Play, or step with the arrow keys. The first step:";
    const ahead = html("div", { class: "ahead", "aria-hidden": "true" }, first[0].cloneNode(true));
    return [html("p", { class: "hint" }, how), ahead];
  }

  function numbersOf(figure, board) {
    const numbers = button("Numbers", () => {
      numbers.setAttribute("aria-pressed", figure.classList.toggle("numbers"));
      board.fit();
    });
    numbers.setAttribute("aria-pressed", figure.classList.contains("numbers"));
    return numbers;
  }

  function setSizes(figure, { ranks, chunks }, steps) {
    const lanes = Math.max(0, ...steps.map(assignLanes));
    const sizes = { chunks, lanes, lines: ranks > 4 ? 2 : 1, letters: ranks > 4 ? 8 : 7 };
    for (const [name, size] of Object.entries(sizes)) figure.style.setProperty(`--${name}`, size);
  }

  function partsOf(figure) {
    const trace = JSON.parse(figure.querySelector("script").textContent);
    const steps = messagesOf(trace);
    const states = statesOf(trace.start, steps);
    const numbers = statesOf(trace.numbers.start, steps, "number");
    const wanted = trace.goal.flat().filter((goal) => goal !== null).length;
    const sentences = [...figure.querySelectorAll("tbody ul")].map((list) => [list]);
    const board = new Board(trace);
    setSizes(figure, trace, steps);
    return {
      picture: [board.scroller, legendOf(steps, states)],
      extras: [numbersOf(figure, board)],
      scroller: board.scroller,
      aside: `${wanted} of ${wanted} complete`,
      beginning: "Start, before any message",
      phases: trace.phases,
      says: [opening(sentences), ...sentences],
      draw(position) {
        const held = states[position].map((row, rank) => row.map((sum, chunk) =>
          [sum, numbers[position][rank][chunk], verdict(sum, trace.goal[rank][chunk])]));
        board.show(held, steps[position - 1] ?? []);
        const right = held.flat().filter(([, , state]) => state === "right").length;
        return [" ", html("span", { class: "count" }, `${right} of ${wanted} complete`)];
      },
    };
  }

  build("schedule", (figure) => new Player(figure, partsOf(figure)));
})();
