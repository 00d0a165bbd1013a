// @ts-check
// The search box of `xlan serve --library`: a sentence in, photos of the server's folder out.

import { find, make, Refusal } from "./basics.js";
import { call, refusal } from "./server.js";

/** @typedef {{photo: string, name: string, score: number, caption: string}} Photo */
/** @typedef {{unknown: {word: string, nearest: string[]}[], photos: number, seconds: number, found: Photo[]}} Found */

const list = find("#finds", HTMLElement);
const told = find("#told", HTMLElement);
/** @type {AbortController | null} */
let under = null; // the search under way
/** @type {string[]} */
let shown = []; // addresses of the photos on the page

/** The photo of an entry; those that cannot be read any more keep their words. @param {Photo} one @param {AbortSignal} signal */
async function show(one, signal) {
  const response = await call(`v1/photos/${encodeURIComponent(one.photo)}`, { signal }, true);
  if (!response.ok) return null;
  const address = URL.createObjectURL(await response.blob());
  shown.push(address);
  return address;
}

/** @param {Photo} one @param {AbortSignal} signal */
function entry(one, signal) {
  const image = make("img", { alt: one.caption || one.name, width: 480, height: 360 });
  void show(one, signal).then((address) => address && image.setAttribute("src", address), () => {});
  const words = make("p", { class: "facts" }, `${one.name} · score ${one.score.toFixed(1)}`);
  return make("li", {}, make("figure", {}, image, make("figcaption", {}, make("p", {}, one.caption), words)));
}

/** What to say about an answer. @param {Found} answer */
function summary(answer) {
  const unknown = answer.unknown.map(({ word, nearest }) =>
    nearest.length ? `“${word}” is not known; nearest: ${nearest.join(", ")}.` : `“${word}” is not known.`,
  );
  const photos = answer.photos === 1 ? "1 photo" : `${answer.photos.toLocaleString("en")} photos`;
  const count = `${answer.found.length} of ${photos}, best first, in ${answer.seconds.toFixed(2)} s.`;
  return [...unknown, answer.photos ? count : "The library has no photos."].join(" ");
}

/** @param {string} sentence */
async function seek(sentence) {
  under?.abort();
  const { signal } = (under = new AbortController());
  told.textContent = "Searching…";
  try {
    const response = await call(`v1/search?${new URLSearchParams({ q: sentence })}`, { signal }, true);
    if (!response.ok) throw await refusal(response);
    /** @type {Found} */
    const answer = await response.json();
    shown.forEach((address) => URL.revokeObjectURL(address));
    shown = [];
    list.replaceChildren(...answer.found.map((one) => entry(one, signal)));
    list.hidden = !answer.found.length;
    told.textContent = summary(answer);
  } catch (error) {
    if (signal.aborted) return;
    told.textContent = error instanceof Refusal ? error.message : `Something went wrong in this page: ${error}`;
  }
}

find("#seek", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  void seek(find("#sentence", HTMLInputElement).value);
});
