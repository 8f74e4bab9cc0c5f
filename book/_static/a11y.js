// Mends what the stock theme leaves out for readers who use a keyboard or a screen reader.
(() => {
  const SCROLLING = "pre, .cell_output, .pst-scrollable-table-container, mjx-container[display='true'], .output";

  // What scrolls must be reachable with Tab, and only while it scrolls.
  function reachable() {
    for (const box of document.querySelectorAll(SCROLLING)) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  }

  function roles() {
    const sidebar = document.querySelector(".sidebar-primary-items__start > .sidebar-primary-item");
    if (sidebar) {
      sidebar.setAttribute("role", "region");
      sidebar.setAttribute("aria-label", "Book title");
    }
    for (const summary of document.querySelectorAll("summary")) {
      if (!summary.textContent.trim()) summary.setAttribute("aria-label", "Open or close this part");
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

  roles();
  signatures();
  reachable();
  window.addEventListener("resize", reachable);
  window.addEventListener("load", () => {
    (window.MathJax?.startup?.promise ?? Promise.resolve()).then(reachable);
    document.fonts.ready.then(reachable);
  });
})();
