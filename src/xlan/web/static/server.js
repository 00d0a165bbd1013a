// @ts-check
// In place of the server of `xlan serve`: a worker in this browser that gives the same answers. Photos stay here.

import { find, Refusal } from "./basics.js";

/** @typedef {{caption: string, confidence: number, score: number}} Other */
/** @typedef {Other & {words: import("./heat.js").Word[], others: Other[], boxes: number[][] | null, model: string,
 *   things?: import("./heat.js").Thing[], image: {width: number, height: number}, seconds: {queue: number, model: number}}} Answer */
/** @typedef {{name: string, parameters: number, vocabulary: number, formats: string[],
 *   limits: {max_bytes: number, max_pixels: number}}} Facts */
/** @typedef {{resolve: (value: any) => void, reject: (error: Error) => void}} Waiting */

// Whatever this browser shows it can caption: nothing is refused before it was tried.
const LIMITS = { max_bytes: Infinity, max_pixels: Infinity };
const FORMATS = ["JPEG", "PNG", "APNG", "WebP", "GIF", "BMP", "AVIF", "HEIC", "HEIF", "JXL", "TIFF", "svg+xml", "x-icon", "vnd.microsoft.icon"];
const PATIENCE = 3000; // milliseconds for the service worker to take over

/** @type {Map<number, Waiting>} */
const waiting = new Map();
let asked = 0;
/** @type {Promise<Worker> | null} */
let started = null;
/** @type {Promise<Facts> | null} */
let known = null;

/** What keeps this page working without a network; a page without it works all the same, with one. */
async function keep() {
  if (!("serviceWorker" in navigator)) return;
  const taken = new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true }));
  const late = new Promise((resolve) => setTimeout(resolve, PATIENCE));
  const registered = await navigator.serviceWorker.register("sw.js").then(() => true, () => false);
  if (registered && !navigator.serviceWorker.controller) await Promise.race([taken, late]);
}

/** @param {string} text @param {number} share from 0 to 1; below 0 where it is not known, above 1 for done */
function showLoading(text, share) {
  const bar = find("#loading progress", HTMLProgressElement);
  if (share >= 0) bar.value = share;
  else bar.removeAttribute("value");
  find("#loading", HTMLElement).hidden = share > 1;
  find("#loading p", HTMLElement).textContent = text;
}

/** @param {string} text "" for nothing */
function showFault(text) {
  find("#fault", HTMLElement).hidden = !text;
  find("#fault", HTMLElement).textContent = text;
}

async function start() {
  showLoading("Loading the model…", -1);
  await keep();
  const worker = new Worker("static/worker.js", { type: "module" });
  worker.addEventListener("message", ({ data }) => {
    if (data.progress) {
      const { got, total } = data.progress;
      const amount = `${(got / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
      return showLoading(got < total ? `Loading the model: ${amount}` : "Starting the model…", got < total ? got / total : -1);
    }
    const who = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) who?.reject(new Refusal(data.error, data.again));
    else who?.resolve(data.result);
  });
  worker.addEventListener("error", (event) => {
    const why = event.message ? `: ${event.message}` : "; is it complete, and this browser a recent one?";
    for (const { reject } of waiting.values()) reject(new Refusal(`The captioner of this page does not start${why}`, "Try again"));
    waiting.clear();
    started = null;
    worker.terminate();
  });
  return worker;
}

/** @param {object} what @returns {Promise<any>} */
async function ask(what) {
  const worker = await (started ??= start());
  return new Promise((resolve, reject) => {
    const id = ++asked;
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, asked: what });
  });
}

/** The model, loaded. @returns {Promise<Facts>} */
async function load() {
  try {
    showFault("");
    const found = await ask({ type: "load" });
    const size = `${(found.parameters / 1e6).toFixed(1)} million parameters, ${found.vocabulary} words`;
    find("#model", HTMLElement).textContent = `Model: ${found.name} (${size}). It runs in this browser.`;
    return { ...found, formats: FORMATS, limits: LIMITS };
  } catch (error) {
    known = null;
    showFault(error instanceof Error ? error.message : String(error));
    throw error;
  } finally {
    showLoading("", 2);
  }
}

/** The model and its limits. @param {AbortSignal | undefined} _signal @param {boolean} _ask */
export function facts(_signal, _ask) {
  return (known ??= load());
}

/**
 * A caption for a photo.
 * @param {Blob} photo @param {string[][]} options @param {AbortSignal} signal @param {(seconds: number) => void} _wait
 * @returns {Promise<Answer>}
 */
export async function captionOf(photo, options, signal, _wait) {
  const began = performance.now();
  const { beams } = Object.fromEntries(options);
  const answer = await ask({ type: "caption", photo, beams: Number(beams) });
  if (signal.aborted) throw signal.reason;
  const total = (performance.now() - began) / 1000;
  return { ...answer, seconds: { ...answer.seconds, queue: Math.max(0, total - answer.seconds.model) } };
}
