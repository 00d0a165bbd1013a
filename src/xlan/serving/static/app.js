// @ts-check
// The page of `xlan serve`: photos in, a card for each, captions from the server, words to point at.
// Photos stay in this page's memory and go to this server alone.

import { find, listed, make, meter, percent, Refusal, save } from "./basics.js";
import { examples } from "./examples.js";
import { explanation } from "./explanation.js";
import { frame, heat, label, likely, ranked, traits } from "./heat.js";
import { options, showOptions } from "./options.js";
import { asJpeg, decoded, fitting, scaled } from "./pictures.js";
import { captionOf, facts } from "./server.js";

/** @typedef {import("./server.js").Answer} Answer */
/** @typedef {import("./options.js").Options} Options */

const AT_ONCE = 2; // requests under way
const SHOWN = 1600; // longest side in pixels of a photo on the page
const PANORAMA = 1.9; // times as wide as high
const LOOKING = "Looking at the photo…";

const form = find("#controls", HTMLFormElement);
const list = find("#cards", HTMLElement);
const cellsWanted = find("#cells", HTMLInputElement);
const thingsWanted = find("#things", HTMLInputElement);
/** @type {Card[]} */
const cards = [];
/** @type {Card[]} */
const queue = [];
let running = 0;
let made = 0;

// --- copying --------------------------------------------------------------------------------------------------------

/** A caption as an attribute of HTML. @param {string} text */
function altAttribute(text) {
  /** @type {Record<string, string>} */
  const signs = { "&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;" };
  return `alt="${text.replace(/[&"<>]/g, (sign) => signs[sign])}"`;
}

/** On plain HTTP from another machine browsers offer no clipboard but this one. @param {string} text */
function copyBySelection(text) {
  const back = document.activeElement;
  const field = /** @type {HTMLTextAreaElement} */ (make("textarea", { class: "unseen", readonly: "" }, text));
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (back instanceof HTMLElement) back.focus();
  return done;
}

// --- one photo ------------------------------------------------------------------------------------------------------

class Card {
  /** @param {File} file */
  constructor(file) {
    this.file = file;
    this.name = file.name || "Photo";
    this.number = ++made;
    this.address = URL.createObjectURL(file);
    this.abort = new AbortController();
    this.options = options();
    /** @type {Answer | null} */
    this.answer = null;
    /** @type {number | null} */
    this.chosen = null;
    this.drawn = false;
    const copy = /** @type {DocumentFragment} */ (find("#card", HTMLTemplateElement).content.cloneNode(true));
    this.item = find("li", HTMLElement, copy);
    this.photo = this.part(".photo");
    this.image = find("img", HTMLImageElement, this.item);
    this.sentence = this.part(".sentence");
    this.prepare();
    this.enqueue();
  }

  /** @param {string} selector */
  part(selector) {
    return find(selector, HTMLElement, this.item);
  }

  prepare() {
    this.image.addEventListener("load", () => this.shape(this.image.naturalWidth, this.image.naturalHeight));
    this.image.src = this.address;
    this.part("h2").textContent = this.name;
    this.part("[data-do=remove]").setAttribute("aria-label", `Remove ${this.name}`);
    this.item.addEventListener("click", (event) => this.click(event));
    this.sentence.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {number} width @param {number} height */
  shape(width, height) {
    if (!width || !height) return;
    this.photo.style.setProperty("--ratio", String(width / height));
    this.item.classList.toggle("panorama", width > PANORAMA * height); // beside it, the text would be the taller one
  }

  get busy() {
    return ["waiting", "working"].includes(this.item.dataset.state ?? "");
  }

  enqueue() {
    this.options = options();
    this.show("waiting", "Waiting for its turn…");
    queue.push(this);
    pump();
  }

  /**
   * Only what people wait for is announced.
   * @param {"waiting" | "working" | "done" | "error"} state @param {string} text
   * @param {boolean} announce @param {string} again what the button says that captions the photo again; "" for no button
   */
  show(state, text, announce = state === "error", again = "Caption again") {
    const line = this.part(".state");
    line.setAttribute("aria-live", announce ? "polite" : "off");
    line.textContent = text;
    this.item.dataset.state = state;
    this.item.dataset.answered = this.answer ? "yes" : "no";
    const button = this.part("[data-do=again]");
    button.textContent = again;
    button.hidden = !again;
    button.setAttribute("aria-disabled", String(this.busy));
    refresh();
  }

  async run() {
    const { signal } = this.abort;
    const chosen = this.options;
    this.show("working", LOOKING);
    try {
      const server = await facts(signal, true);
      const image = await decoded(this.address);
      await this.preview(image);
      const { photo, note } = await fitting(this.file, image, server);
      this.part(".note").textContent = note;
      this.part(".note").hidden = !note;
      this.answer = await captionOf(photo, chosen.fields, signal, (seconds) => this.wait(seconds));
      this.showAnswer(this.answer, chosen);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refusal) this.show("error", error.message, true, error.again);
      else this.show("error", `Something went wrong in this page: ${error}`, true, "Try again");
    }
  }

  /** @param {number} seconds until the next try, 0 for now */
  wait(seconds) {
    if (seconds) this.show("working", `The server is busy. Trying again in ${seconds} s.`, true);
    else this.show("working", LOOKING);
  }

  /** A large photo is shown as a smaller copy. @param {HTMLImageElement | null} image */
  async preview(image) {
    this.photo.classList.toggle("blank", !image);
    const scale = image ? SHOWN / Math.max(image.naturalWidth, image.naturalHeight) : 1;
    if (image && scale < 1 && this.image.src === this.address) {
      this.image.src = URL.createObjectURL(await asJpeg(scaled(image, scale)));
    }
  }

  /** @param {Answer} answer @param {Options} chosen */
  showAnswer(answer, chosen) {
    const said = answer.caption || "(nothing)";
    const seconds = answer.seconds.queue + answer.seconds.model;
    const focused = this.sentence.contains(document.activeElement);
    this.drawn = chosen.drawing;
    this.image.alt = said;
    this.shape(answer.image.width, answer.image.height);
    this.show("done", "", true);
    this.part(".state").append(make("span", { class: "unseen" }, `Caption of ${this.name}: ${said}`));
    this.part(".found").hidden = false;
    this.part(".meter").replaceWith(meter(answer.confidence, "confidence"));
    this.part(".facts").textContent =
      `confidence ${percent(answer.confidence)} · ${seconds.toFixed(2)} s · ${chosen.words}`;
    this.fillThings(likely(answer.things));
    this.fillWords(answer);
    this.fillOthers(answer.others);
    this.choose(null);
    if (focused) this.part("h2").focus();
  }

  /** @param {import("./heat.js").Thing[]} things */
  fillThings(things) {
    const told = things.map((thing) => `${label(thing)} ${percent(thing.score)}`).join(", ");
    this.part(".things").hidden = !things.length;
    this.part(".things").textContent = `The detector found: ${told}`;
  }

  /** @param {Answer} answer */
  fillWords(answer) {
    const id = (/** @type {number} */ i) => `word-${this.number}-${i}`;
    const buttons = answer.words.map((word, i) => {
      const button = make("button", { type: "button", tabindex: i ? -1 : 0, "aria-describedby": id(i) }, word.text);
      button.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && this.look(i));
      button.addEventListener("pointerleave", () => this.look(this.chosen));
      button.addEventListener("click", () => this.choose(this.chosen === i ? null : i));
      return button;
    });
    const told = answer.words.map((word, i) => {
      const block = listed([["probability", percent(word.probability)], ...traits(word, answer.boxes)]);
      block.id = id(i);
      return block;
    });
    this.sentence.replaceChildren(...(buttons.length ? buttons : ["(nothing)"]));
    this.part(".telling").replaceChildren(...told);
  }

  /** @param {Answer["others"]} others */
  fillOthers(others) {
    this.part(".others").hidden = !others.length;
    this.part(".others summary").textContent = `${this.drawn ? "Also drawn" : "Other captions"} (${others.length})`;
    const items = ranked(others).map(({ caption, confidence }) =>
      make("li", {}, caption || "(nothing)", make("span", { class: "soft" }, ` ${percent(confidence)}`)),
    );
    this.part(".others ol").replaceChildren(...items);
  }

  /** Show where the model looked for a word; null for the photo alone. @param {number | null} i */
  look(i) {
    const spatial = i === null ? null : this.answer?.words[i].spatial;
    const boxes = this.answer?.boxes;
    const told = [...this.part(".telling").children];
    told.forEach((block, k) => block.classList.toggle("on", k === i));
    const looked = (i === null ? null : this.answer?.words[i].looked_at) ?? null;
    const found = i === null && thingsWanted.checked ? likely(this.answer?.things) : [];
    this.photo.querySelectorAll(".heat,.thing").forEach((old) => old.remove());
    this.photo.classList.toggle("looked", Boolean(spatial && boxes));
    if (spatial && boxes) this.photo.append(heat(spatial, boxes, cellsWanted.checked, looked));
    if (looked?.name) this.photo.append(frame(looked));
    this.photo.append(...found.map(frame));
  }

  /** Keep a word in view; null for none. @param {number | null} i */
  choose(i) {
    this.chosen = i;
    [...this.sentence.children].forEach((button, k) => {
      button.setAttribute("aria-pressed", String(k === i));
      if (i !== null) button.setAttribute("tabindex", k === i ? "0" : "-1");
    });
    this.look(i);
  }

  /** Arrow keys move from word to word. @param {KeyboardEvent} event */
  key(event) {
    const buttons = /** @type {HTMLElement[]} */ ([...this.sentence.children]);
    const here = buttons.findIndex((button) => button === document.activeElement);
    const last = buttons.length - 1;
    const [back, on] = [here - 1, here + 1];
    /** @type {Record<string, number>} */
    const moves = { ArrowLeft: back, ArrowUp: back, ArrowRight: on, ArrowDown: on, Home: 0, End: last };
    if (event.key === "Escape") this.choose(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const there = Math.min(last, Math.max(0, moves[event.key]));
    this.choose(there);
    buttons[there].focus();
  }

  /** @param {MouseEvent} event */
  click(event) {
    const button = event.target instanceof Element ? event.target.closest("[data-do]") : null;
    const said = this.answer?.caption ?? "";
    /** @type {Record<string, () => unknown>} */
    const actions = {
      remove: () => this.remove(),
      again: () => this.busy || this.enqueue(),
      copyText: () => this.copy(said),
      copyAlt: () => this.copy(altAttribute(said)),
      download: () => this.download(),
    };
    actions[button?.getAttribute("data-do") ?? ""]?.();
  }

  /** @param {string} text */
  async copy(text) {
    const line = this.part(".copied");
    line.textContent = "";
    const done = (await navigator.clipboard?.writeText(text).then(() => true, () => false)) || copyBySelection(text);
    line.classList.toggle("ok", done);
    line.textContent = done ? `Copied: ${text}` : `Please copy this by hand: ${text}`;
  }

  download() {
    if (!this.answer) return;
    const html = explanation(this.name, this.image, this.answer, this.drawn);
    save(html, "text/html", `${this.name.replace(/\.\w+$/, "")}-explained.html`);
  }

  /** Take the card off the page and free what it holds. */
  dispose() {
    this.abort.abort();
    for (const group of [cards, queue]) if (group.includes(this)) group.splice(group.indexOf(this), 1);
    this.item.remove();
    for (const address of [this.address, this.image.src]) URL.revokeObjectURL(address);
  }

  remove() {
    const next = this.item.nextElementSibling ?? this.item.previousElementSibling;
    this.dispose();
    refresh();
    (next ? find("h2", HTMLElement, next) : find("#files", HTMLElement)).focus();
    tell(`${this.name} removed.`, false);
  }
}

// --- all photos -----------------------------------------------------------------------------------------------------

function pump() {
  while (running < AT_ONCE && queue.length) {
    running++;
    void queue.shift()?.run().finally(() => (running--, pump()));
  }
}

function refresh() {
  document.body.classList.toggle("begun", cards.length > 0);
  list.hidden = !cards.length;
  find("#empty", HTMLElement).hidden = cards.length > 0;
  find("#tools", HTMLElement).hidden = !cards.length;
  const answered = cards.some((card) => card.answer);
  find("#hint", HTMLElement).hidden = !answered;
  find("#things-choice", HTMLElement).hidden = !cards.some((card) => card.answer?.things?.length);
  find("#csv", HTMLButtonElement).disabled = !answered;
  find("#again", HTMLButtonElement).disabled = !cards.length;
}

/** A sentence for everybody, or for screen readers alone. @param {string} text @param {boolean} visible */
function tell(text, visible) {
  const notice = find("#notice", HTMLElement);
  notice.textContent = text;
  notice.classList.toggle("unseen", !visible);
}

/** Newest first; photos added together keep their order. @param {Iterable<File>} files @param {string} otherwise */
function add(files, otherwise) {
  const fresh = [...files].map((file) => new Card(file));
  if (!fresh.length) return tell(otherwise, true);
  cards.unshift(...fresh);
  list.prepend(...fresh.map((card) => card.item));
  refresh();
  tell(fresh.length === 1 ? `${fresh[0].name} added.` : `${fresh.length} photos added.`, false);
}

function clearAll() {
  const count = cards.length;
  for (const card of [...cards]) card.dispose();
  refresh();
  find("#files", HTMLElement).focus();
  tell(count === 1 ? "1 photo removed." : `${count} photos removed.`, false);
}

/** A field of a CSV file; a spreadsheet would run a name that begins like a formula. @param {string} text */
const csvField = (text) => `"${text.replace(/^(?=[=+\-@\t\r])/, "'").replace(/"/g, '""')}"`;

/** All captions, as shown from top to bottom. */
function downloadCsv() {
  const lines = cards.flatMap(({ name, answer }) =>
    answer ? [[csvField(name), csvField(answer.caption), answer.confidence].join(",")] : [],
  );
  save(`\ufeff${["image,caption,confidence", ...lines].join("\r\n")}\r\n`, "text/csv;charset=utf-8", "captions.csv");
}

/** @param {boolean} on */
const dragging = (on) => document.body.classList.toggle("dragging", on);

for (const input of [find("#files", HTMLInputElement), find("#camera", HTMLInputElement)]) {
  input.addEventListener("change", () => {
    add(input.files ?? [], "No photo was chosen.");
    input.value = ""; // so that the same photo can be chosen again
  });
}
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  dragging(true);
});
document.addEventListener("dragleave", (event) => event.relatedTarget || dragging(false));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  dragging(false);
  add(event.dataTransfer?.files ?? [], "That was not a file. Save the picture first, then drop the file here.");
});
document.addEventListener("paste", (event) => {
  const files = event.clipboardData?.files ?? [];
  const typing = event.target instanceof HTMLInputElement && event.target.type !== "file";
  if (files.length || !typing) add(files, "There is no picture in the clipboard.");
});
find("#clear", HTMLButtonElement).addEventListener("click", clearAll);
find("#csv", HTMLButtonElement).addEventListener("click", downloadCsv);
for (const wanted of [cellsWanted, thingsWanted]) {
  wanted.addEventListener("change", () => cards.forEach((card) => card.look(card.chosen)));
}
form.addEventListener("change", showOptions);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  showOptions();
  for (const card of cards) if (!card.busy) card.enqueue();
});
showOptions();
void examples((file) => add([file], ""));
facts(undefined, false).catch(() => {}); // only to name the model early: a photo that needs it will say what is wrong
