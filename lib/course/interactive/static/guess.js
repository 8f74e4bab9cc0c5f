// A guess before the answer: entered or picked, kept in the browser, and held against what is true.
(() => {
  "use strict";
  const { html, button, build } = globalThis.minidistPlayer;
  const { kept, keep, lost, whenKept } = globalThis.minidistKept;

  // ---- one question ----

  // "2,000", "2.5" and "2,5", with or without the unit
  function numberOf(text, unit) {
    const bare = text.replace(unit, "").replace(/\s/g, "");
    return Number(/^\d*,\d{1,2}$/.test(bare) ? bare.replace(",", ".") : bare.replaceAll(",", ""));
  }

  function compare(guess, { answer, shown, unit, choices }) {
    if (choices.length) {
      const right = guess === answer;
      return { guess, right, says: `You picked “${guess}”${right ? ": right." : `; it is “${shown}”.`}` };
    }
    const ratio = guess / answer;
    const off = Math.max(ratio, 1 / ratio);
    const times = `${off.toLocaleString("en", { maximumSignificantDigits: 2 })} times`;
    const how = off < 1.05 ? "you are within 5%" : ratio < 1 ? `${times} your guess` : `your guess is ${times} that`;
    return { guess, ratio, says: `You guessed ${`${guess.toLocaleString("en")} ${unit}`.trim()}; it is ${shown}: ${how}.` };
  }

  function ask(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const { unit, choices } = data;
    const { name } = figure.dataset;
    const question = figure.querySelector(".goal").textContent;
    const details = figure.querySelector("details");
    const said = html("p", { role: "status" });
    const again = button("Clear my guess", () => {
      keep("guesses", { [name]: undefined });
      form.querySelector("input, button").focus();
    });

    function take(guess) {
      const page = location.pathname.split("/").pop();
      keep("guesses", { [name]: { question, page, ...compare(guess, data) } });
      again.focus();
    }

    const box = html("input", { type: "text", inputmode: "decimal", autocomplete: "off" });
    const entry = [html("label", {}, "Your guess ", box, ` ${unit}`), html("button", {}, "Guess")];
    const picks = choices.map((each) => button(each, () => take(each)));
    const form = html("form", { class: "controls" }, ...(picks.length ? picks : entry));
    form.onsubmit = (event) => {
      event.preventDefault();
      const value = numberOf(box.value, unit);
      if (value > 0 && value < Infinity) take(value);
      else said.textContent = "Enter a number above zero.";
    };
    details.before(form, said, again);
    figure.dataset.ready = "";
    whenKept("guesses", () => {
      const guess = kept("guesses")[name]?.guess; // the page may have another answer now than then
      const made = picks.length ? choices.includes(guess) : guess > 0;
      form.hidden = details.hidden = made;
      again.hidden = !made;
      said.textContent = made ? `${compare(guess, data).says} ${lost()}` : "";
    });
  }

  // ---- all guesses, against the answers ----

  const SCALE = { "1/10": 0.1, "1/2": 0.5, right: 1, "×2": 2, "×10": 10 };
  const at = (ratio) => `left: ${50 + 50 * Math.min(Math.max(Math.log10(ratio), -1), 1)}%`;
  const strip = (...marks) => html("span", { class: "scale", "aria-hidden": "true" }, html("span", {}, ...marks));

  function rowOf([name, { question, page, says, ratio, right }]) {
    const beyond = ratio < 0.1 ? "‹" : ratio > 10 ? "›" : "";
    const mark = right === undefined
      ? strip(html("i", { style: at(ratio), class: "dot" }, beyond))
      : html("b", { "aria-hidden": "true" }, right ? "✓" : "✗");
    const link = html("a", { href: `./${page}#guess-${name}` }, question);
    return html("li", {}, html("span", {}, link, ` ${says}`), mark);
  }

  function sumOf(rows) {
    const count = (test) => rows.filter(test).length;
    const numbers = count(({ ratio }) => ratio > 0);
    const near = count(({ ratio }) => ratio >= 0.5 && ratio <= 2);
    const parts = numbers ? [`${near} of ${numbers} within a factor of two`] : [];
    const picked = rows.length - numbers;
    if (picked) parts.push(`${count(({ right }) => right)} of ${picked} picked right`);
    return parts.join(", ");
  }

  function board(figure) {
    const plain = figure.querySelector(".plain");
    const total = html("span", { role: "status" });
    const marks = Object.entries(SCALE).map(([text, ratio]) => html("i", { style: at(ratio) }, text));
    const list = html("ol");
    const clear = button("Clear all", () => {
      keep("guesses", Object.fromEntries(Object.keys(kept("guesses")).map((name) => [name])));
    });
    const part = html("div", {}, html("div", { class: "ends" }, strip(...marks)), list, clear);
    plain.textContent = "None yet: the chapters ask.";
    figure.querySelector("strong").after(" ", total);
    figure.append(part);
    whenKept("guesses", () => {
      const rows = Object.entries(kept("guesses")).filter(([, each]) => each?.says);
      list.replaceChildren(...rows.map(rowOf));
      total.textContent = sumOf(rows.map(([, each]) => each));
      plain.hidden = rows.length > 0;
      part.hidden = !rows.length;
    });
  }

  build("guess", ask);
  build("guesses", board);
})();
