// What a page shows of its puzzles: their stars, and the button that brings the editor.
(() => {
  "use strict";
  const { html, button } = globalThis.minidistPlayer;
  const { kept, whenKept, load } = globalThis.minidistKept;

  function starsOf(earned, of) {
    const text = "★".repeat(earned) + "☆".repeat(of - earned);
    return html("span", { class: "stars", role: "img", "aria-label": `${earned} of ${of} stars` }, text);
  }

  function earnedOf(name, most) {
    return Math.min(Math.max(Number(kept("puzzles")[name]?.stars) || 0, 0), most);
  }

  function showStars({ dataset: { name, stars } }, node) {
    const most = Number(stars);
    if (most) whenKept("puzzles", () => node.replaceChildren(starsOf(earnedOf(name, most), most)));
  }

  function prepare(figure) {
    const earned = html("span");
    const open = button("Edit", edit);
    const controls = html("div", { class: "controls" }, open);
    async function edit() {
      open.disabled = true; // pressed twice, it would bring two boxes
      try {
        await Promise.all(["editor.css", "colored.js", "editor.js"].map(load));
        new globalThis.MinidistEditor(figure, controls);
      } catch ({ message }) {
        open.disabled = false;
        controls.replaceChildren(open, html("span", { role: "status" }, message));
      }
    }
    figure.dataset.ready = "";
    figure.querySelector("figcaption strong").after(" ", earned);
    figure.querySelector(".plain").before(controls);
    showStars(figure, earned);
  }

  function board(figure) {
    const total = html("span", { role: "status" });
    const items = [...figure.querySelectorAll("li")];
    figure.querySelector("strong").after(" ", total);
    for (const item of items) {
      const mark = html("span");
      item.append(" ", mark);
      showStars(item, mark);
    }
    const sum = (count) => items.reduce((all, { dataset }) => all + count(dataset), 0);
    const most = sum(({ stars }) => Number(stars));
    whenKept("puzzles", () => {
      total.textContent = `${sum(({ name, stars }) => earnedOf(name, Number(stars)))} of ${most}`;
    });
  }

  globalThis.minidistPuzzles = { starsOf, earnedOf };
  document.querySelectorAll("figure.editor").forEach(prepare);
  document.querySelectorAll("figure.board-of-stars").forEach(board);
})();
