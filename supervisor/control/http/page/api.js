// Requests to the supervisor that serves this page.

/** Answer with an error, or no answer at all (status 0). `message` says what is wrong, and the fix. */
export class ApiError extends Error {
  constructor(status, code, message, retryS = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryS = retryS;
  }
}

/** An id in a path stands as it is, but for the characters that end a path. */
export const inPath = (id) => encodeURI(id).replaceAll("#", "%23").replaceAll("?", "%3F");

export async function errorOf(response) {
  const body = await response.json().catch(() => null);
  const retryS = Number(response.headers.get("Retry-After")) || null;
  return new ApiError(response.status, body?.error?.code || "failed", body?.error?.message || `the supervisor answered with status ${response.status}`, retryS);
}

export async function request(method, path, body, { key, signal } = {}) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  if (key) headers["Idempotency-Key"] = key;
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "lost", "the supervisor does not answer");
  }
  if (!response.ok) throw await errorOf(response);
  return response.status === 204 ? null : response.json();
}

const V1 = "/api/v1";
export const get = (path, options) => request("GET", V1 + path, undefined, options);
export const post = (path, body, options) => request("POST", V1 + path, body, options);

/** Exchange the secret in the address for the cookie, and take it out of the address bar and the history. */
export async function letIn() {
  const secret = location.hash.slice(1);
  if (!/^[\w-]{20,}$/.test(secret)) return;
  history.replaceState(null, "", location.pathname + location.search);
  await request("POST", "/session", { secret });
}

/** Key of a command: the command takes effect once, however often it is sent. */
export const newKey = () => `page-${crypto.randomUUID()}`;
