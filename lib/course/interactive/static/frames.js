// Plays pictures that Python made: the list of them is shown one by one, each with its sentence.
(() => {
  "use strict";
  const { Player, html, build } = globalThis.minidistPlayer;

  function partsOf(figure) {
    const frames = [...figure.querySelectorAll(".all > li")].map((frame) => [...frame.children]);
    const stage = html("div", { class: "stage" });
    return {
      picture: [stage],
      beginning: "Start",
      phases: JSON.parse(figure.dataset.phases),
      says: frames.map(([, sentence]) => [sentence]),
      draw(position) {
        stage.replaceChildren(frames[position][0].cloneNode(true));
        return [];
      },
    };
  }

  build("frames", (figure) => new Player(figure, partsOf(figure)));
})();
