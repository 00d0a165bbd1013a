// @ts-check
// A folder of files has no examples: the page shows how it works, and waits for a photo.

/** @param {(file: File) => void} _use would be given the one that is chosen */
export async function examples(_use) {}
