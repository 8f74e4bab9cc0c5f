// Mends what the stock theme leaves out for readers who use a keyboard or a screen reader.
(() => {
  const SCROLLING =
    "pre, .cell_output, .pst-scrollable-table-container, .picture, mjx-container[display='true'], .output";

  // An equation a little wider than a phone is set smaller; a much wider one scrolls.
  const LEAST = 0.75;
  function equations() {
    for (const box of document.querySelectorAll("mjx-container[display='true']")) {
      box.dataset.size ??= box.style.fontSize || "100%";
      box.style.fontSize = box.dataset.size;
      const fits = box.clientWidth / box.scrollWidth;
      if (fits < 1 && fits >= LEAST) box.style.fontSize = `${0.98 * fits * parseFloat(box.dataset.size)}%`;
    }
  }

  // What scrolls must be reachable with Tab, and only while it scrolls.
  function reachable() {
    for (const box of document.querySelectorAll(SCROLLING)) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      hint(box);
    }
  }

  // A box of which there is more to the right fades out there.
  function hint(box) {
    const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.classList.toggle("more", rest > 1);
  }

  // A phone shows a picture in its own size, in a box that scrolls: its labels would be too small.
  function pictures() {
    for (const picture of document.querySelectorAll("article :is(figure, .cell_output) img")) {
      const box = document.createElement("div");
      box.className = "picture";
      picture.replaceWith(box);
      box.append(picture);
      picture.addEventListener("load", reachable);
    }
  }

  function roles() {
    const sidebar = document.querySelector(".sidebar-primary-items__start > .sidebar-primary-item");
    if (sidebar) {
      sidebar.setAttribute("role", "region");
      sidebar.setAttribute("aria-label", "Book title");
    }
    for (const summary of document.querySelectorAll("summary")) {
      if (summary.textContent.trim()) summary.removeAttribute("aria-label"); // its words say more
      else summary.setAttribute("aria-label", "Open or close this part");
    }
    for (const entry of document.querySelectorAll(".citation-list > .citation")) {
      entry.setAttribute("role", "listitem");
    }
  }

  // Sphinx writes a long signature as a list of definitions without terms; lines it is.
  function signatures() {
    for (const list of document.querySelectorAll("dt.sig > dl")) {
      const lines = [...list.children].map((item) => {
        const line = document.createElement("div");
        line.className = "parameter-line";
        line.append(...item.childNodes);
        return line;
      });
      list.replaceWith(...lines);
    }
  }

  // A printed table, such as a plan's, scrolls: wrapped, its columns would no longer be columns.
  function columns() {
    const row = /\S {2,}\S.* {2,}\S/;
    for (const printed of document.querySelectorAll("article .cell_output pre")) {
      const rows = printed.textContent.split("\n").filter((line) => row.test(line));
      printed.classList.toggle("columns", rows.length > 1);
    }
  }

  // A long name breaks where its parts end.
  const LONG = 14; // letters
  function names() {
    for (const part of document.querySelectorAll("article code.literal .pre")) {
      const text = part.textContent;
      if (text.length < LONG || (text.length < 2 * LONG && !part.closest("td"))) continue;
      const parts = text.split(/(?<=[\w)][._]|[(,=/|])(?=[\w.])|(?<=[a-z]{3})(?=[A-Z][a-z])/);
      if (parts.length > 1) part.replaceChildren(...parts.flatMap((each) => [each, document.createElement("wbr")]));
    }
    for (const heading of document.querySelectorAll("article :is(h1, h2, h3)")) {
      for (const text of [...heading.childNodes].filter(({ nodeType }) => nodeType === Node.TEXT_NODE)) {
        const parts = text.data.split(/(?<=[A-Za-z]{4}[a-z])(?=[A-Z][a-z])/);
        text.replaceWith(...parts.flatMap((each, i) => (i ? [document.createElement("wbr"), each] : [each])));
      }
    }
  }

  // A column of sentences says so: on a phone it would have a word a line.
  const SENTENCE = 24; // letters
  function sentences() {
    for (const table of document.querySelectorAll("article .pst-scrollable-table-container table")) {
      const wordy = new Set();
      for (const cell of table.querySelectorAll("td")) {
        if (cell.textContent.trim().length > SENTENCE) wordy.add(cell.cellIndex);
      }
      for (const cell of table.querySelectorAll("td")) {
        cell.classList.toggle("wordy", wordy.has(cell.cellIndex));
      }
    }
  }

  // A formula, the bracket before it and the comma after it stay on one line.
  function signs() {
    for (const formula of document.querySelectorAll("article mjx-container:not([display], .together *)")) {
      const whole = document.createElement("span");
      const math = formula.nextSibling ? formula : formula.parentElement;
      const text = (node) => (node?.nodeType === Node.TEXT_NODE ? node.data : "");
      const [before, after] = [math.previousSibling, math.nextSibling];
      const [opening] = /[([“‘]*$/.exec(text(before));
      const [closing] = /^[.,;:!?)\]’”]*/.exec(text(after));
      if (!opening && !closing) continue;
      whole.className = "together";
      math.before(whole);
      whole.append(opening, math, closing);
      if (opening) before.data = before.data.slice(0, -opening.length);
      if (closing) after.data = after.data.slice(closing.length);
    }
  }

  // The contents of the page show where one is, however one came there; the theme's lag behind.
  const UNDER_THE_HEADER = 120; // pixels
  const entries = [...document.querySelectorAll("#pst-page-toc-nav a[href^='#']")];
  const target = (entry) => document.getElementById(decodeURIComponent(entry.hash.slice(1)));
  function here() {
    const passed = entries.filter((entry) => target(entry)?.getBoundingClientRect().top < UNDER_THE_HEADER);
    for (const entry of passed.length ? entries : []) {
      entry.classList.toggle("active", entry === passed.at(-1));
      if (entry === passed.at(-1)) entry.setAttribute("aria-current", "true");
      else entry.removeAttribute("aria-current");
    }
  }

  roles();
  names();
  sentences();
  signatures();
  columns();
  pictures();
  reachable();
  const fit = () => (equations(), signs(), reachable());
  window.addEventListener("resize", fit);
  const scrolled = ({ target }) => target.matches?.(SCROLLING) && hint(target);
  document.addEventListener("scroll", scrolled, { capture: true, passive: true });
  document.addEventListener("scrollend", here);
  window.addEventListener("load", () => {
    (window.MathJax?.startup?.promise ?? Promise.resolve()).then(fit);
    document.fonts.ready.then(reachable);
  });
})();
