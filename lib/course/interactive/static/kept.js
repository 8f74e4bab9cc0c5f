// What a reader did, as this browser keeps it. `progress` is {off, done: {name: page}}, `puzzles`
// {name: {code, stars, best}}, `guesses` {name: {question, page, guess, says}} with a ratio or `right`.
globalThis.minidistKept ??= (() => {
  "use strict";
  const { html } = globalThis.minidistPlayer;
  const FOLDER = (document.currentScript?.src ?? "").replace(/[^/]*$/, "");
  const unkept = {}; // what cannot be stored: that is forbidden, or there is no room
  const shows = []; // [part, function]
  const loads = {};

  function kept(part) {
    try {
      return { ...JSON.parse(unkept[part] ?? localStorage.getItem(`minidist.${part}`)) };
    } catch {
      return {}; // forbidden, or spoiled
    }
  }

  function keep(part, values) {
    unkept[part] = JSON.stringify({ ...kept(part), ...values });
    try {
      localStorage.setItem(`minidist.${part}`, unkept[part]);
      delete unkept[part];
    } catch {} // it lasts as long as the page
    tell(part);
  }

  function lost() {
    const all = Object.keys(unkept).length === 0;
    return all ? "" : "This browser keeps nothing here once you leave the page.";
  }

  function whenKept(part, show) {
    shows.push([part, show]);
    show();
  }

  const tell = (part) => shows.forEach(([of, show]) => of === part && show());
  const tellAll = () => shows.forEach(([, show]) => show());

  // A script or style that stands beside this one, once it is needed.
  function load(name) {
    loads[name] ??= new Promise((loaded, failed) => {
      const address = FOLDER + name;
      const node = name.endsWith(".css")
        ? html("link", { rel: "stylesheet", href: address })
        : html("script", { src: address });
      node.onload = loaded;
      node.onerror = () => {
        delete loads[name];
        failed(new Error(`A file of this page does not load: ${name}.`));
      };
      document.head.append(node);
    });
    return loads[name];
  }

  addEventListener("storage", tellAll); // another tab
  addEventListener("pageshow", tellAll); // back to a page that the browser has not closed
  keep("progress"); // to learn whether it can be stored
  return { kept, keep, lost, whenKept, load };
})();
