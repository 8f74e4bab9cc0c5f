// Plays pictures that Python made: the list of them is shown one by one, each with its sentence.
(() => {
  "use strict";
  const { Player, html, build } = globalThis.minidistPlayer;

  class Frames extends Player {
    constructor(figure) {
      const frames = [...figure.querySelectorAll(".all > li")];
      super(figure, frames.length - 1);
      this.frames = frames;
      this.phases_ = JSON.parse(figure.dataset.phases);
      this.start();
    }

    get picture() {
      this.stage = html("div", { class: "stage" });
      return [this.stage];
    }

    get phases() {
      return this.phases_;
    }

    get sentences() {
      return this.frames.map((frame) => [frame.children[1]]);
    }

    get beginning() {
      return "Start";
    }

    draw() {
      const [picture, sentence] = this.frames[this.position].children;
      this.stage.replaceChildren(picture.cloneNode(true));
      return [[], [sentence.cloneNode(true)]];
    }
  }

  build("frames", Frames);
})();
