// A search of grids, with sliders: a table of the best, where the seconds of one of them go, and why
// the others are slower. A worker searches, for a page shall not stand still for a second.
(() => {
  "use strict";
  const { html } = globalThis.minidistPlayer;
  const { searched, usable } = globalThis.minidistModules["course.interactive.in_page"];
  const { lanes, bytesText, tickText, percentText, show } = globalThis.minidistSliders;

  const PAUSE = 250; // ms without a change before a search begins
  const KINDS = { compute: "computes", communication: "communicates", bubble: "waits" };
  const KIND = { compute: "compute", recomputation: "compute", update: "compute", bubble: "bubble", borders: "bubble" };
  const DEGREES = ["data", "tensor", "pipeline", "context", "expert"];
  const many = (count) => count.toLocaleString("en");

  // ---- in a worker, or where there can be none, after a pause ----

  // Answers a question, and returns what stops it.
  function ask(question, done) {
    const here = () => setTimeout(() => done(searched(...question)));
    try {
      const source = `const modules = ${globalThis.minidistModules.source()};
        onmessage = ({ data }) => postMessage(modules["course.interactive.in_page"].searched(...data));`;
      const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      const worker = new Worker(address);
      const stop = () => (worker.terminate(), URL.revokeObjectURL(address));
      worker.onmessage = ({ data }) => (stop(), done(data));
      worker.onerror = () => (stop(), here());
      worker.postMessage(question);
      return stop;
    } catch {
      here();
      return () => {};
    }
  }

  // Of each figure: answers, by what its controls say; which row is chosen; the question that is
  // being asked, and what stops that.
  const all = new WeakMap();
  let figures = 0;

  function answerOf(values, data, again) {
    const key = JSON.stringify(values);
    if (!all.has(data)) all.set(data, { name: `grids-${(figures += 1)}`, answers: new Map([[key, data.first]]) });
    const own = all.get(data);
    if (own.key === key) return own;
    own.stop?.();
    Object.assign(own, { key, row: 0, table: null, stop: null });
    if (own.answers.has(key)) return own;
    const { model, tokens, gpu, ranks, samples, orders } = values;
    const limit = usable(data.gpus[gpu].memory, data.room);
    const question = [model, tokens, data.gpus[gpu], data.each, ranks, samples, limit, data.orders[orders]];
    const timer = setTimeout(() => {
      own.stop = ask(question, (answer) => {
        own.answers.set(key, answer);
        if (own.key === key) again();
      });
    }, PAUSE);
    own.stop = () => clearTimeout(timer);
    return own;
  }

  // ---- what is shown ----

  function drawSearch(values, data, _, again) {
    const own = answerOf(values, data, again);
    const answer = own.answers.get(own.key);
    if (!answer) return { says: "Searching all grids …" };
    if (!answer.best.length) return { says: sayNothing(answer, values, data) };
    own.table ??= tableOf(answer, data, own, again);
    const says = sayWhy(answer.best, own.row, data.spent);
    return { table: own.table, node: barsOf(answer.best, own.row, data.spent), legend: KINDS, says };
  }

  // As course.interactive.searching writes it.
  const degreesText = (grid) =>
    DEGREES.filter((name) => grid[name] > 1).map((name) => `${name} ${many(grid[name])}`).join(", ");
  function restText({ strategy, pipeline, order, interleaved, batch, recompute, nearer }, { names, shown }) {
    const stages = interleaved > 1 ? `, ${interleaved} stages per GPU` : "";
    const near = nearer === "pipeline" ? " inside nodes" : "";
    const works = pipeline > 1 ? `${shown[order]}${near}${stages}; ` : "";
    return `${names[strategy]}; ${works}micro-batch ${batch}; recompute ${recompute}`;
  }

  function bindsText({ seconds, spent, binds: { part, needs, how } }, { seen, spent: parts, names }) {
    const share = (name) => percentText(spent[name], seconds);
    const computes = `compute ${share("compute")}`;
    if (needs) return `${computes}; memory: would need ${bytesText(needs)} with ${names[how] ?? how}`;
    return spent[part] > seen * seconds ? `${computes}, ${parts[part]} ${share(part)}` : computes;
  }

  function tableOf({ best, tried }, data, own, again) {
    const heads = ["#", "grid, and what binds it", "step", "MFU", "peak"].map((text) => html("th", { scope: "col" }, text));
    const rows = best.map((each, row) => {
      const { grid, seconds, mfu, peak } = each;
      const input = html("input", { type: "radio", name: own.name, "aria-label": `Bars of grid ${row + 1}` });
      input.checked = row === own.row;
      input.addEventListener("change", () => ((own.row = row), again()));
      const cells = [tickText(seconds), percentText(mfu, 1), bytesText(peak)];
      return html("tr", {},
        html("td", {}, html("label", {}, input, `${row + 1}`)),
        html("td", {}, degreesText(grid), ...[restText(grid, data), bindsText(each, data)].map((text) => html("small", {}, text))),
        ...cells.map((text) => html("td", {}, text)));
    });
    return html("table", { class: "found" },
      html("caption", {}, captionText(best.length, tried)),
      html("thead", {}, html("tr", {}, ...heads)), html("tbody", {}, ...rows));
  }
  const captionText = (count, tried) =>
    `The fastest of ${many(tried)} grids, ${count > 1 ? "each with other degrees" : "the only degrees that fit"}:`;

  // Bars of what takes at least a thousandth of a step; below the first grid's are the chosen one's.
  function barsOf(best, row, names) {
    const shown = row ? [best[0], best[row]] : [best[0]];
    const parts = Object.keys(names).filter((part) => shown.some(({ spent, seconds }) => spent[part] > seconds / 1000));
    const most = Math.max(...shown.flatMap(({ spent }) => parts.map((part) => spent[part])));
    const all = parts.flatMap((part) => {
      const takes = shown.map(({ spent }) => tickText(Math.max(0, spent[part])));
      const note = row ? `${takes[0]}, grid ${row + 1}: ${takes[1]}` : takes[0];
      return shown.map(({ spent }, place) =>
        [place ? "" : names[part], note, "thin", [[0, Math.max(0, spent[part]), KIND[part] ?? "communication"]]]);
    });
    return lanes(all, most);
  }

  function sayWhy(best, row, names) {
    const [{ seconds, spent, placed }] = best;
    const [most, next] = Object.keys(names).sort((a, b) => spent[b] - spent[a]);
    const of = (part) => `${names[part]} (${percentText(spent[part], seconds)})`;
    const first = `Of the best grid's ${tickText(seconds)} most goes to ${of(most)}, then to ${of(next)}. ${placed}`;
    return best.length > 1 ? `${first} ${sayLost(best, row || 1, names)}` : `${first} No other degrees fit.`;
  }

  function sayLost(best, row, names) {
    const [first, other] = [best[0], best[row]];
    const more = (part) => other.spent[part] - first.spent[part];
    const parts = Object.keys(names);
    const worst = parts.reduce((a, b) => (more(b) > more(a) ? b : a));
    const saves = parts.reduce((a, b) => (more(b) < more(a) ? b : a));
    const lost = `Grid ${row + 1} takes ${tickText(other.seconds - first.seconds)} longer: it loses ` +
      `${tickText(more(worst))} to ${names[worst]}`;
    return more(saves) < 0 ? `${lost}, and saves ${tickText(-more(saves))} in ${names[saves]}.` : `${lost}.`;
  }

  function sayNothing({ tried, least, enough }, { gpu, ranks, samples }, data) {
    if (!tried) return `No grid has ${many(ranks)} GPUs and ${many(samples)} sequences: each replica takes as many as any other, and at least one.`;
    const limit = usable(data.gpus[gpu].memory, data.room);
    const more = enough ? `It would fit on ${many(enough)} GPUs.` : "It would not fit on 64 times as many GPUs either.";
    return `Nothing fits: ${degreesText(least.grid)} (${restText(least.grid, data)}) needs least, ` +
      `${bytesText(least.peak)} on each GPU, ${bytesText(least.peak - limit)} more than ${bytesText(limit)}. ${more}`;
  }

  show({ search: drawSearch });
})();
