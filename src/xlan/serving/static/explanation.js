// @ts-check
// An explanation to keep: one HTML file that needs nothing else, without a script, looking as `xlan explain` makes it.
// It is made here and not by the server, which has forgotten the photo by now.

import { draw, listed, make, meter, percent } from "./basics.js";
import { cells, label, ranked, traits, whereItLooked } from "./heat.js";
import { scaled } from "./pictures.js";

/** @typedef {import("./server.js").Answer} Answer */
/** @typedef {(label: string, ...over: Element[]) => Element} Shot */

const SIDE = 720; // pixels of the photo in the file
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
const KEY =
  "Heat is relative to the place a word weighed most, which is outlined. " +
  "The percentage beside a word is its probability.";

/**
 * The photo, embedded once, and a function that shows it with something over it.
 * @param {HTMLImageElement} image @param {Answer} answer
 */
function embedded(image, answer) {
  const { naturalWidth, naturalHeight } = image;
  const scale = Math.min(1, SIDE / Math.max(naturalWidth, naturalHeight));
  const canvas = naturalWidth ? scaled(image, scale) : null;
  const { width, height } = canvas ?? answer.image;
  const href = canvas ? canvas.toDataURL("image/jpeg", 0.85) : "data:,";
  const store = draw("svg", { class: "store", "aria-hidden": "true" });
  store.append(draw("defs", {}, draw("image", { id: "photo", width, height, href })));
  const frame = { class: "shot", viewBox: `0 0 ${width} ${height}`, role: "img" };
  /** @type {Shot} */
  const shot = (told, ...over) =>
    draw("svg", { ...frame, "aria-label": told }, draw("use", { href: "#photo" }), ...over);
  return { store, shot, size: { width, height } };
}

/**
 * The name of what a word looked at, at the upper left corner of its box, inside the photo.
 * @param {import("./heat.js").Look} looked @param {{width: number, height: number}} photo
 */
function plate(looked, { width, height }) {
  const name = label(looked);
  const size = Math.max(12, Math.max(width, height) / 26);
  const wide = Math.min(width, (0.62 * name.length + 0.8) * size);
  const x = Math.min(Math.max(0, looked.box[0] * width), width - wide);
  const above = looked.box[1] * height - 1.3 * size;
  const y = Math.min(Math.max(0, above >= 0 ? above : looked.box[1] * height), Math.max(0, height - 1.3 * size));
  const text = { x: x + 0.4 * size, y: y + 0.98 * size, "font-size": size };
  const fit = { textLength: wide - 0.8 * size, lengthAdjust: "spacingAndGlyphs" };
  const back = draw("rect", { x, y, width: wide, height: 1.3 * size });
  return draw("g", { class: "plate" }, back, draw("text", { ...text, ...fit }, document.createTextNode(name)));
}

/** @param {Answer} answer @param {boolean} drawn */
function sentence(answer, drawn) {
  const facts = `confidence ${percent(answer.confidence)}, log-probability ${answer.score.toFixed(2)}`;
  const block = make("div", {}, make("p", { class: "said" }, answer.caption || "(nothing)"));
  block.append(meter(answer.confidence, "confidence"), make("p", { class: "facts" }, facts));
  if (!answer.others.length) return block;
  const others = ranked(answer.others).map((other) => make("li", {}, `${other.caption} (${percent(other.confidence)})`));
  block.append(make("h2", {}, drawn ? "Also drawn" : "Other sentences it kept"), make("ol", {}, ...others));
  return block;
}

/** @param {Answer} answer @param {Shot} shot @param {{width: number, height: number}} size of the photo */
function wordByWord(answer, shot, size) {
  const items = answer.words.map((word) => {
    const title = make("h3", {}, make("bdi", {}, word.text), make("span", {}, percent(word.probability)));
    const told = make("div", {}, title, meter(word.probability, "probability"), listed(traits(word, answer.boxes)));
    if (!word.spatial || !answer.boxes) return make("li", { class: "word" }, told);
    const looked = word.looked_at ?? null;
    const where = `“${word.text}”: ${whereItLooked(word.spatial, answer.boxes, looked)}`;
    const over = [cells(word.spatial, answer.boxes, looked), ...(looked?.name ? [plate(looked, size)] : [])];
    return make("li", { class: "word" }, shot(where, ...over), told);
  });
  return make("ol", { class: "words", role: "list" }, ...items);
}

/** The rules of this very page, which begin with those that all our pages share. */
const style = () =>
  [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText)).join("\n");

/**
 * The document as text.
 * @param {string} name of the photo @param {HTMLImageElement} image
 * @param {Answer} answer @param {boolean} drawn whether the captions were drawn at random
 */
export function explanation(name, image, answer, drawn) {
  const page = document.implementation.createHTMLDocument(`${name} – explained`);
  const { store, shot, size } = embedded(image, answer);
  const looked = `What ${answer.model} said of this picture, and where it looked for each word.`;
  page.documentElement.lang = "en";
  page.head.prepend(make("meta", { charset: "utf-8" }));
  page.head.append(
    make("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    make("meta", { "http-equiv": "Content-Security-Policy", content: POLICY }),
  );
  const main = make("main", {}, make("h1", { dir: "auto" }, name), make("p", { class: "soft" }, looked));
  const whole = shot(`the picture, described as: ${answer.caption}`);
  main.append(make("div", { class: "hero" }, whole, sentence(answer, drawn)));
  main.append(make("h2", {}, "Word by word"), make("p", { class: "facts" }, KEY), wordByWord(answer, shot, size));
  page.body.append(store, main);
  // As text: the policy of this page forbids style elements, even in a document that is not shown.
  const html = page.documentElement.outerHTML.replace("</head>", () => `<style>\n${style()}\n</style></head>`);
  return `<!doctype html>\n${html}\n`;
}
