// Python in the colors of the page's other code: nodes with the classes that Pygments gives.
globalThis.minidistColored = (() => {
  "use strict";
  const KEYWORDS =
    "and as assert async await break class continue def del elif else except finally for from global if import in is " +
    "lambda nonlocal not or pass raise return try while with yield";
  const BUILTINS =
    "abs all any bool dict divmod enumerate float int len list map max min next print range reversed round set sorted " +
    "str sum tuple type zip";
  const words = (names, kind) => names.split(" ").map((name) => [name, kind]);
  const KINDS = new Map([...words(KEYWORDS, "k"), ...words("None True False", "kc"), ...words(BUILTINS, "nb")]);
  const STRING = ["'''", '"""']
    .map((quote) => `${quote}[^]*?(?:${quote}|$)`) // a long one that is not closed yet goes on to the end
    .concat(["'", '"'].map((quote) => `${quote}(?:\\\\.|[^\\\\\\n${quote}])*${quote}?`))
    .join("|");
  const TOKEN = new RegExp(`(#.*)|([rbfu]{0,2}(?:${STRING}))|(\\d[\\w.]*)|([\\p{L}_][\\p{L}\\p{N}_]*)`, "giu");

  function colored(code) {
    const nodes = [];
    let end = 0;
    let before = ""; // the word before this one
    for (const { 0: text, 1: comment, 2: string, 3: number, 4: word, index } of code.matchAll(TOKEN)) {
      const named = /^(def|class)$/.test(before) && "nf";
      const attribute = code[index - 1] === "."; // list.sum is no builtin
      const kind = (comment && "c1") || (string && "s2") || (number && "mi") || named || (!attribute && KINDS.get(word));
      before = word;
      if (!kind) continue;
      const node = document.createElement("span");
      node.className = kind;
      node.textContent = text;
      nodes.push(code.slice(end, index), node);
      end = index + text.length;
    }
    return [...nodes, code.slice(end)];
  }

  return colored;
})();
