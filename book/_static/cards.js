// Under a link to a term stands what the term means, and under one to a figure of the page the
// figure, as long as the pointer or the focus is there. Escape takes it away.
(() => {
  "use strict";
  const DELAY = 200; // ms: a pointer that only passes opens nothing
  const EDGE = 8; // pixels between the card and the window's edge
  const HEADER = 60; // pixels
  const card = document.createElement("div");
  card.className = "card-of-link";
  card.hidden = true;
  card.ariaHidden = "true"; // a term's meaning is its link's description; a figure is on the page
  let timer = 0;

  function isSeen(picture) {
    const { top, bottom } = picture.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight;
  }

  // The figure's picture, and the first sentence of its caption.
  function figureOf(link) {
    const figure = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    const picture = figure?.querySelector(".picture > img");
    if (!picture || isSeen(picture)) return [];
    const image = new Image();
    Object.assign(image, { src: picture.src, alt: "", className: picture.className });
    const text = document.createElement("p");
    const caption = figure.querySelector(".caption-text")?.textContent ?? "";
    text.textContent = /^.+?[.!?](?=\s|$)/su.exec(caption)?.[0] ?? caption;
    const formula = figure.querySelector(".caption-text mjx-container"); // its letters are no text
    return formula ? [image] : [image, text];
  }

  function content(link) {
    if (!link.dataset.says) return figureOf(link);
    const text = document.createElement("p");
    text.textContent = link.dataset.says;
    return [text];
  }

  function place(link) {
    const [first] = link.getClientRects();
    const { offsetWidth: width, offsetHeight: height } = card;
    const room = document.documentElement.clientWidth - width - EDGE;
    const above = first.bottom + height + EDGE > innerHeight && first.top > height + HEADER;
    card.style.left = `${scrollX + Math.max(EDGE, Math.min(first.left, room))}px`;
    card.style.top = `${scrollY + (above ? first.top - height : first.bottom)}px`;
  }

  function open(link) {
    card.replaceChildren(...content(link));
    card.hidden = !card.childElementCount;
    card.querySelector("img")?.addEventListener("load", () => place(link));
    place(link);
  }

  const close = () => (clearTimeout(timer), (card.hidden = true));
  const later = (then, ...rest) => (clearTimeout(timer), (timer = setTimeout(then, DELAY, ...rest)));

  const FIGURE = "a.reference.internal[href^='#']:has(> .std-numref)";
  for (const link of document.querySelectorAll(`article a.reference[title][href*='#term-'], article ${FIGURE}`)) {
    if (link.title) {
      link.ariaDescription = link.dataset.says = link.title;
      link.removeAttribute("title"); // or the browser would show it a second time
    }
    link.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && later(open, link));
    link.addEventListener("pointerleave", () => later(close));
    link.addEventListener("focus", () => link.matches(":focus-visible") && open(link));
    link.addEventListener("blur", close);
    link.addEventListener("click", close);
  }
  card.addEventListener("pointerenter", () => clearTimeout(timer));
  card.addEventListener("pointerleave", () => later(close));
  addEventListener("keydown", ({ key }) => key === "Escape" && close());
  document.body.append(card);
})();
