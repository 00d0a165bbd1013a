// @ts-check
// The files of this folder: fetched with progress, compared with what the export says of them.

import { Refusal } from "./basics.js";

/** @typedef {{bytes: number, sha256: string}} Said */

const AGAIN = "Copy the whole folder again, then reload this page.";

/** @param {string} address */
async function response(address) {
  const found = await fetch(address).catch(() => {
    throw new Refusal(`The file ${address} cannot be fetched. Is the web server still running?`, "Try again");
  });
  if (found.status === 404) throw new Refusal(`The file ${address} is missing. ${AGAIN}`, "Try again");
  if (!found.ok) throw new Refusal(`The file ${address} cannot be fetched: status ${found.status}.`, "Try again");
  return found;
}

/** What a browser keeps of a damaged file would be damaged tomorrow. @param {string} address */
async function forget(address) {
  if (!("caches" in globalThis)) return;
  for (const name of await caches.keys()) await (await caches.open(name)).delete(address);
}

/** @param {ArrayBuffer} content */
async function sha256(content) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * The content of a file; `got` hears of every piece, in bytes.
 * @param {string} address @param {Said} said @param {(bytes: number) => void} got @returns {Promise<ArrayBuffer>}
 */
export async function file(address, said, got) {
  const { body } = await response(address);
  const content = new Uint8Array(said.bytes);
  let length = 0;
  for (const reader = /** @type {ReadableStream<Uint8Array>} */ (body).getReader(); ; ) {
    const { done, value } = await reader.read().catch(() => ({ done: true, value: undefined }));
    if (done || !value) break;
    if (length + value.length <= said.bytes) content.set(value, length);
    length += value.length;
    got(value.length);
  }
  if (length !== said.bytes) {
    await forget(address);
    const sizes = `${length.toLocaleString("en")} bytes, expected ${said.bytes.toLocaleString("en")}`;
    throw new Refusal(`The file ${address} is not complete: ${sizes}. ${AGAIN}`, "Try again");
  }
  // Browsers offer no hashes on plain HTTP from another machine; the size has to do there.
  if (globalThis.crypto?.subtle && (await sha256(content.buffer)) !== said.sha256) {
    await forget(address);
    throw new Refusal(`The file ${address} is damaged or belongs to another export. ${AGAIN}`, "Try again");
  }
  return content.buffer;
}

/** A small JSON file. @param {string} address @returns {Promise<any>} */
export async function json(address) {
  const found = await response(address);
  try {
    return await found.json();
  } catch {
    await forget(address);
    throw new Refusal(`The file ${address} cannot be read as JSON. ${AGAIN}`, "Try again");
  }
}

/** What was packed with gzip. @param {ArrayBuffer} content @returns {Promise<ArrayBuffer>} */
export function unpacked(content) {
  return new Response(new Blob([content]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}
