// Under a link to a term stands what the term means; under one to a figure the figure, or its first
// sentence if another page has it; as long as the pointer or the focus is there. Escape takes it away.
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

  function paragraph(text) {
    const node = document.createElement("p");
    node.textContent = text;
    return node;
  }

  // The figure's picture, and the first sentence of its caption.
  function partsOf(figure, picture) {
    const image = new Image();
    Object.assign(image, { src: picture.src, alt: "", className: picture.className });
    const caption = figure.querySelector(".caption-text");
    if (!caption || caption.querySelector("mjx-container")) return [image]; // a formula is no text
    const text = caption.textContent;
    return [image, paragraph(/^.+?[.!?](?=\s|$)/su.exec(text)?.[0] ?? text)];
  }

  function content(link) {
    const figure = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    const picture = figure?.querySelector(".picture > img");
    if (picture) return isSeen(picture) ? [] : partsOf(figure, picture);
    return link.dataset.says ? [paragraph(link.dataset.says)] : [];
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

  const LINKS = ["a.reference[title][href*='#term-']", "a.reference.internal[href*='#']:has(> .std-numref)"];
  for (const link of document.querySelectorAll(LINKS.map((each) => `article ${each}`))) {
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
