// Numbers, times and text as the page shows them.

const two = (n) => String(n).padStart(2, "0");

/** Time of day of a Unix time: 19:45:22, with `digits` 3 also the milliseconds. */
export function clock(t, digits = 0) {
  const d = new Date(t * 1000);
  const text = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return digits ? `${text}.${String(d.getMilliseconds()).padStart(3, "0")}` : text;
}

/** Date and time, for values that may be older than a day. */
export const moment = (t) => new Date(t * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Age in at most four characters: 4s, 12m, 3h, 2d. */
export function age(s) {
  const n = Math.max(0, s);
  if (n < 60) return `${Math.floor(n)}s`;
  if (n < 3600) return `${Math.floor(n / 60)}m`;
  return n < 86400 ? `${Math.floor(n / 3600)}h` : `${Math.floor(n / 86400)}d`;
}

/** Duration that can be compared with another: 39 ms, 6.0 s, 1 min 05 s. */
export function duration(s) {
  if (s === null || s === undefined) return "";
  if (s < 1) return `${Math.round(Math.max(0, s) * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(Math.floor(s % 60))} s`;
  return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
}

/** Countdown: 2:34. */
export function countdown(s) {
  const n = Math.max(0, Math.ceil(s));
  const rest = `${two(Math.floor((n % 3600) / 60))}:${two(n % 60)}`;
  return n < 3600 ? rest.replace(/^0/, "") : `${Math.floor(n / 3600)}:${rest}`;
}

export const money = (usd) => (usd < 0.005 && usd > 0 ? "<0.01" : usd.toFixed(2));
export const count = (n) =>
  n < 1000 ? String(Math.round(n)) : n < 1e4 ? `${(n / 1e3).toFixed(1)}k` : n < 1e6 ? `${Math.round(n / 1e3)}k` : `${(n / 1e6).toFixed(1)}M`;
export const tokensOf = (used) => (used?.input_tokens || 0) + (used?.output_tokens || 0);
export const plural = (n, word, more = `${word}s`) => `${n} ${n === 1 ? word : more}`;

/** Seconds after which an age comes forward, and after which it looks stale. */
const OLD_S = 30;
const STALE_S = 120;
export const staleness = (s) => (s >= STALE_S ? "stale" : s >= OLD_S ? "old" : "fresh");

const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Text of an agent with control and direction characters made visible, and cut to `most` characters. */
export function clean(text, most = 2000) {
  const given = String(text ?? "");
  const cut = given.length > most ? `${given.slice(0, most)}… (${given.length - most} more characters)` : given;
  return cut.replace(UNSAFE, (one) => {
    const code = one.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

/** First line of a text, for a place with one line. */
export const line = (text, most = 300) => clean(String(text ?? "").split("\n", 1)[0], most);
