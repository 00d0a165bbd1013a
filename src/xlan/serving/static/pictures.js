// @ts-check
// Photos as this browser holds them: opened upright, and copied where they are too large or of a kind the server lacks.

import { Refusal } from "./basics.js";

/** @param {number} bytes */
const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MB`;

/** @param {number} pixels */
const megapixels = (pixels) => `${(pixels / 1e6).toFixed(1)} megapixels`;

/** The picture, or null where this browser cannot read it. @param {string} address */
export async function decoded(address) {
  const image = new Image();
  image.src = address;
  return image.decode().then(() => image, () => null);
}

/** @param {HTMLImageElement} image @param {number} scale */
export function scaled(image, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.floor(image.naturalWidth * scale));
  canvas.height = Math.max(1, Math.floor(image.naturalHeight * scale));
  const context = canvas.getContext("2d");
  if (!context) throw new Refusal("This browser has no memory left for a photo of this size.");
  context.fillStyle = "#fff"; // JPEG has no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** @param {HTMLCanvasElement} canvas @returns {Promise<Blob>} */
export function asJpeg(canvas) {
  return new Promise((resolve, reject) => {
    const failed = new Refusal("This photo is too large for this browser.");
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(failed)), "image/jpeg", 0.92);
  });
}

/** The file as it is now; folders, and files that were moved or changed, cannot be read. @param {File} file */
async function readable(file) {
  const bytes = await file.arrayBuffer().catch(() => {
    throw new Refusal("This cannot be read. Is it a folder, or was the file moved or changed?");
  });
  return new Blob([bytes], { type: file.type });
}

/**
 * Why the server would not take a file; "" when it would.
 * @param {File} file @param {HTMLImageElement | null} image @param {import("./server.js").Facts} facts
 */
function misfit(file, image, { limits, formats }) {
  const pixels = image ? image.naturalWidth * image.naturalHeight : 0;
  const known = formats.map((format) => `image/${format.toLowerCase()}`);
  if (file.size > limits.max_bytes) {
    return `The file has ${megabytes(file.size)}, this server takes ${megabytes(limits.max_bytes)}`;
  }
  if (pixels > limits.max_pixels) {
    return `The photo has ${megapixels(pixels)}, this server takes ${megapixels(limits.max_pixels)}`;
  }
  return image && file.type && !known.includes(file.type) ? `This server does not read files of type ${file.type}` : "";
}

/**
 * The photo as the server takes it: the file itself, or a copy with a note that says why.
 * @param {File} file @param {HTMLImageElement | null} image @param {import("./server.js").Facts} facts
 * @returns {Promise<{photo: Blob, note: string}>}
 */
export async function fitting(file, image, facts) {
  const { max_bytes, max_pixels } = facts.limits;
  const why = misfit(file, image, facts);
  if (!why) return { photo: await readable(file), note: "" };
  if (!image) throw new Refusal(`${why}, and this browser cannot make it smaller.`);
  const fit = Math.sqrt(max_pixels / (image.naturalWidth * image.naturalHeight));
  for (let scale = Math.min(1, fit); scale > 0.02; scale *= 0.7) {
    const canvas = scaled(image, scale);
    const photo = await asJpeg(canvas);
    const note = `${why}: a JPEG copy of ${canvas.width} × ${canvas.height} pixels was sent.`;
    if (photo.size <= max_bytes) return { photo, note };
  }
  throw new Refusal(`${why}, and no copy is small enough.`);
}
