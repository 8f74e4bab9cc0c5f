// A click on a picture, or Enter on its button, shows it as large as the window.
(() => {
  "use strict";
  const PICTURES = "article :is(figure, .cell_output) .picture > img";
  const ICON =
    '<svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="2" aria-hidden="true">' +
    '<path d="M10 2h4v4M14 2 9.5 6.5M6 14H2v-4M2 14l4.5-4.5"/></svg>';
  const make = (name, attributes, ...children) => {
    const node = Object.assign(document.createElement(name), attributes);
    node.append(...children);
    return node;
  };

  const image = make("img", {});
  const scroller = make("div", { className: "picture" }, image);
  const close = make("button", { type: "button", textContent: "✕", ariaLabel: "Close" });
  const caption = make("p", {});
  const dialog = make("dialog", { className: "enlarged" }, close, scroller, caption);
  const nameOf = (picture) => picture.closest("figure")?.querySelector(".caption-number")?.textContent.trim() || "picture";

  // Nothing in it is linked to, or takes its part's name a second time.
  function captionOf(picture) {
    const copy = picture.closest("figure")?.querySelector("figcaption > p")?.cloneNode(true);
    if (!copy) return [];
    copy.querySelectorAll(".headerlink").forEach((link) => link.remove());
    copy.querySelectorAll("[id]").forEach((part) => part.removeAttribute("id"));
    return [...copy.childNodes];
  }

  // As wide as there is room for without scrolling; on a narrow window twice as wide as it was,
  // and then one scrolls.
  function fit() {
    const style = getComputedStyle(dialog);
    const around = caption.offsetHeight + parseFloat(style.paddingTop) + parseFloat(style.paddingBottom);
    const high = (innerHeight - around) * (image.naturalWidth / image.naturalHeight || 1); // its width then
    const least = innerWidth < 600 ? 2 * (innerWidth - 32) : 0;
    image.style.width = `${Math.max(Math.min(scroller.clientWidth, high), least)}px`;
    scroller.tabIndex = scroller.scrollWidth > scroller.clientWidth || scroller.scrollHeight > scroller.clientHeight ? 0 : -1;
  }

  function show(picture) {
    dialog.ariaLabel = `${nameOf(picture)}, enlarged`;
    caption.replaceChildren(...captionOf(picture));
    Object.assign(image, { alt: picture.alt, className: picture.className, onload: fit, src: picture.src });
    dialog.showModal();
    fit();
    close.focus();
  }

  function prepare(picture) {
    const button = make("button", { type: "button", className: "enlarge", title: "Enlarge" });
    button.ariaLabel = `Enlarge ${nameOf(picture)}`;
    button.innerHTML = ICON;
    button.onclick = () => show(picture);
    picture.onclick = () => show(picture);
    const box = make("div", { className: "enlargeable" });
    picture.parentElement.replaceWith(box);
    box.append(button, picture.parentElement);
  }

  const found = [...document.querySelectorAll(PICTURES)].filter((picture) => !picture.closest("a, .minidist-widget"));
  if (!found.length) return;
  found.forEach(prepare);
  document.body.append(dialog);
  dialog.onclick = () => dialog.contains(getSelection().focusNode) && getSelection().toString() || dialog.close();
  addEventListener("resize", () => dialog.open && fit());
})();
