// @ts-check
// Talking to the server: the token, its limits, captions; what goes wrong comes back as a sentence.

import { find, Refusal } from "./basics.js";

/** @typedef {{caption: string, confidence: number, score: number}} Other */
/** @typedef {Other & {words: import("./heat.js").Word[], others: Other[], boxes: number[][] | null, model: string,
 *   things?: import("./heat.js").Thing[], image: {width: number, height: number}, seconds: {queue: number, model: number}}} Answer */
/** @typedef {{name: string, parameters: number, vocabulary: number, formats: string[],
 *   limits: {max_bytes: number, max_pixels: number}}} Facts */

const TRIES = 10; // of one photo at a busy server
const LONGEST_WAIT = 60; // seconds between them

let token = ""; // kept in this variable alone
/** @type {Promise<boolean> | null} */
let asking = null;
/** @type {Facts | null} */
let known = null;

/** Ask for the token, once for all photos that need it; false when there is none to be had. @param {boolean} again */
function askToken(again) {
  asking ??= new Promise((resolve) => {
    const dialog = find("#ask", HTMLDialogElement);
    const field = find("#token", HTMLInputElement);
    find("#ask-why", HTMLElement).textContent = again
      ? "The server did not accept that token. Please check it and try again."
      : "Whoever runs the server can tell you. This page forgets it when it is closed.";
    const finish = () => {
      const given = dialog.returnValue === "use";
      if (given) token = field.value;
      field.value = "";
      asking = null;
      resolve(given);
    };
    dialog.returnValue = "";
    dialog.addEventListener("close", finish, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** A request with the token. @param {string} path @param {RequestInit} init @param {boolean} ask for the token */
export async function call(path, init, ask) {
  for (;;) {
    const sent = token;
    /** @type {Record<string, string>} */
    const headers = sent ? { Authorization: `Bearer ${sent}` } : {};
    const response = await fetch(path, { ...init, headers, cache: "no-store" }).catch((error) => {
      if (init.signal?.aborted) throw error;
      throw new Refusal("The server cannot be reached. Is it still running?", "Try again");
    });
    if (response.status !== 401 || !ask) return response;
    if (sent === token && !(await askToken(sent !== ""))) throw new Refusal("The server asks for a token.", "Try again");
  }
}

/** Why the server said no, without the names of its fields. @param {Response} response */
export async function refusal(response) {
  const problem = await response.json().catch(() => ({}));
  const said = String(problem.detail || problem.title || `the server answered with status ${response.status}`);
  const detail = said.replace(/^image: (?=is |has |claims |cannot )/, "this file ").replace(/^must: /, "");
  const sentence = detail[0].toUpperCase() + detail.slice(1) + (/[.!?]$/.test(detail) ? "" : ".");
  const options = /:(bad-option|unusable-options)$/.test(problem.type); // which the person can change
  const passing = response.status >= 500 || [401, 408].includes(response.status);
  return new Refusal(sentence, passing ? "Try again" : options ? "Caption again" : "");
}

/** The model and its limits. @param {AbortSignal | undefined} signal @param {boolean} ask for the token */
export async function facts(signal, ask) {
  if (known) return known;
  const response = await call("v1/model", { signal }, ask);
  if (!response.ok) throw await refusal(response);
  /** @type {Facts} */
  const found = await response.json();
  const size = `${(found.parameters / 1e6).toFixed(1)} million parameters, ${found.vocabulary} words`;
  find("#model", HTMLElement).textContent = `Model: ${found.name} (${size}) ·`;
  return (known = found);
}

/** @param {number} seconds @param {AbortSignal} signal */
function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

/**
 * A caption for a photo. While the server is busy, wait as long as it says and ask again.
 * @param {Blob} photo @param {string[][]} options @param {AbortSignal} signal
 * @param {(seconds: number) => void} wait is told how long; 0 when the wait is over
 * @returns {Promise<Answer>}
 */
export async function captionOf(photo, options, signal, wait) {
  const body = new FormData();
  body.append("image", photo, "photo"); // the name of the file stays in this page
  for (const [field, value] of [...options, ["explain", "true"]]) body.append(field, value);
  for (let attempt = 1; ; attempt++) {
    const response = await call("v1/captions", { method: "POST", body, signal }, true);
    if (response.ok) return response.json();
    if (response.status !== 503 || attempt === TRIES) throw await refusal(response);
    const seconds = Math.min(LONGEST_WAIT, Math.max(1, Number(response.headers.get("Retry-After")) || 1));
    wait(seconds);
    await pause(seconds, signal);
    wait(0);
  }
}
