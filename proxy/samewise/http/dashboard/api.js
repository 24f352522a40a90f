// The admin API. The token is the operator's, kept for this tab alone and sent as a header.

const BASE = new URL("samewise/v1/", new URL(".", location.href));
const PLACE = "samewise-token";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(PLACE) ?? "",
  set: (value) => (value ? sessionStorage.setItem(PLACE, value) : sessionStorage.removeItem(PLACE)),
};

function headers(more = {}) {
  const value = token.get();
  return value ? { ...more, Authorization: `Bearer ${value}` } : more;
}

async function refusal(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // no JSON: the status says enough
  }
  return new Refused(response.status, message);
}

export async function call(method, path, body) {
  const response = await fetch(new URL(path, BASE), {
    method,
    headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// Where a part is not there (an older proxy, a switched-off feature) its list is empty.
export async function list(path) {
  try {
    return (await call("GET", path)).items ?? [];
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

// Tells every event, for as long as the page lives; a stream that ends is opened again. `opened` is called each time.
export async function follow(path, tell, opened, signal) {
  while (!signal.aborted) {
    try {
      const response = await fetch(new URL(path, BASE), { headers: headers(), signal, cache: "no-store" });
      if (!response.ok) throw await refusal(response);
      opened();
      await read(response.body.getReader(), tell);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 403) return;
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

async function read(reader, tell) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart())
        .join("\n");
      if (data) tell(JSON.parse(data));
    }
  }
}
