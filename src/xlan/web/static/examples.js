// @ts-check
// A folder of files has no examples: the page shows how it works, and waits for a photo.

export async function examples() {}
