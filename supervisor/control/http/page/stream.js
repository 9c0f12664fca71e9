// Records from the supervisor, exactly once and in order, for all tabs of a browser over one connection.
//
// Every tab has a copy of the state, and the number of its last record. What it lacks it reads page by page from
// /api/v1/records. One visible tab holds a lock, follows /api/v1/events, and passes the records on to the others by a
// BroadcastChannel. A hidden tab closes its stream and gives the lock away; when it is seen again, it reads what it lacks.
// The stream is read with fetch, not with EventSource: EventSource hides the heartbeats, and gives up for ever after one
// answer with 429, 502 or 503.
import { ApiError, errorOf, get } from "./api.js";

const PAGE = 1000;
/** Number of past records that a page reads when it opens; what is older is seen as it is now. */
const WINDOW = 30_000;
export const JOURNAL_WINDOW = 300_000;
const SILENT_S = 25; // two heartbeats and a half
const RETRY_S = [1, 1, 2, 4, 8, 15];
const LOCK = "supervisor-stream";

export class Stream {
  /** handle: {reset(nodes, state), records(list), changed()} */
  constructor(handle) {
    this.handle = handle;
    this.seq = 0;
    this.state = null; // the answer of /api/v1/page
    this.status = "opening"; // opening, live, lost, denied, ended, journal
    this.why = "";
    this.isLeader = false;
    this.offset = 0; // clock of the supervisor minus ours, in seconds
    this.heardAt = performance.now();
    this.failures = 0;
    this.channel = new BroadcastChannel(LOCK);
    this.channel.onmessage = (event) => this.onMessage(event.data);
    this.catching = null;
  }

  now() {
    return Date.now() / 1000 + this.offset;
  }

  /** Seconds since the last byte of the supervisor. */
  silentS() {
    return (performance.now() - this.heardAt) / 1000;
  }

  set(status, why = "") {
    if (this.status === status && this.why === why) return;
    this.status = status;
    this.why = why;
    this.handle.changed();
  }

  async open() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    setInterval(() => this.watch(), 1000);
    for (;;) {
      try {
        await this.reset();
        break;
      } catch (error) {
        if (this.isFinal(error)) return;
        await this.wait(error);
      }
    }
    if (!this.state.live) return this.set("journal");
    if (document.hidden) return undefined;
    return this.compete();
  }

  /** Whether no later try can succeed by itself. */
  isFinal(error) {
    if (!(error instanceof ApiError) || ![401, 403].includes(error.status)) return false;
    this.set("denied", error.message);
    return true;
  }

  async wait(error) {
    const pauseS = error?.retryS ?? RETRY_S[Math.min(this.failures, RETRY_S.length - 1)];
    this.failures++;
    if (this.status !== "ended") this.set("lost", error?.message || "");
    await new Promise((wake) => setTimeout(wake, pauseS * 1000 * (0.8 + Math.random() * 0.4)));
  }

  heard() {
    this.heardAt = performance.now();
    this.failures = 0;
  }

  async hello() {
    const begin = Date.now() / 1000;
    const state = await get("/page");
    this.offset = state.now - (begin + Date.now() / 1000) / 2;
    this.state = state;
    this.heard();
    return state;
  }

  /** Begin anew: the tree as it is, unless all records can be read; then the records of the window. */
  async reset() {
    const state = await this.hello();
    const begin = Math.max(0, state.seq - (state.live ? WINDOW : JOURNAL_WINDOW));
    const nodes = begin > 0 ? (await get("/tree")).nodes : [];
    this.seq = begin;
    this.handle.reset(nodes, state, begin);
    await this.catchUp();
  }

  /** Read the records that this tab lacks. */
  catchUp() {
    this.catching ||= this.readOn().finally(() => (this.catching = null));
    return this.catching;
  }

  async readOn() {
    for (;;) {
      const { items, next } = await get(`/records?after=${this.seq}&limit=${PAGE}`);
      this.heard();
      this.take(items);
      if (next === null) return;
      this.handle.changed();
    }
  }

  take(records) {
    const fresh = records.filter((one) => one.seq > this.seq);
    if (!fresh.length) return;
    this.seq = fresh.at(-1).seq;
    this.handle.records(fresh);
  }

  // ------------------------------------------------------------------------------------------------ several tabs
  onMessage(message) {
    if (document.hidden || !this.state || this.isLeader) return;
    this.heard();
    if (message.status) this.set(message.status, message.why);
    if (message.reset) this.reset().catch((error) => this.isFinal(error));
    else if (message.records?.length) {
      if (message.after > this.seq) this.catchUp().catch((error) => this.isFinal(error));
      else this.take(message.records);
    }
  }

  pass(message) {
    this.channel.postMessage({ status: this.status, why: this.why, ...message });
  }

  pause() {
    this.stop?.abort();
    this.stop = null;
  }

  async resume() {
    if (!this.state?.live || this.status === "denied") return;
    try {
      await this.check();
    } catch (error) {
      if (this.isFinal(error)) return;
    }
    if (!document.hidden) this.compete();
  }

  /** Wait for the lock, and follow the stream while this tab is seen. */
  compete() {
    if (this.stop) return;
    const stop = (this.stop = new AbortController());
    if (this.status !== "lost") this.set("live");
    navigator.locks.request(LOCK, { signal: stop.signal }, async () => {
      this.isLeader = true;
      try {
        while (!stop.signal.aborted && (await this.follow(stop.signal)));
      } finally {
        this.isLeader = false;
      }
    }).catch((error) => {
      if (error.name !== "AbortError") throw error;
    });
  }

  /** Check that the journal is the same, and read what came meanwhile. */
  async check() {
    const before = this.state.directory;
    const state = await this.hello();
    if (state.seq < this.seq || state.directory !== before) {
      await this.reset();
      this.pass({ reset: true });
    } else await this.catchUp();
    this.handle.changed();
  }

  /** One connection, from its beginning to its end; returns whether to connect again. */
  async follow(signal) {
    const connection = new AbortController();
    const abort = () => connection.abort();
    signal.addEventListener("abort", abort);
    this.connection = connection;
    try {
      await this.check();
      const response = await fetch(`/api/v1/events?after=${this.seq}`, { signal: connection.signal, cache: "no-store" });
      if (!response.ok) throw await errorOf(response);
      this.heard();
      this.set("live");
      this.pass({});
      return await this.readStream(response.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch (error) {
      if (signal.aborted) return false;
      if (this.isFinal(error)) {
        this.pass({});
        return false;
      }
      const waited = this.wait(error instanceof ApiError ? error : null);
      this.pass({});
      await waited;
      return true;
    } finally {
      signal.removeEventListener("abort", abort);
      connection.abort();
    }
  }

  async readStream(reader) {
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError(0, "lost", "the connection was closed");
      this.heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      const after = this.seq;
      const records = [];
      for (const block of blocks) {
        const event = {};
        for (const text of block.split("\n")) {
          const cut = text.indexOf(": ");
          if (cut > 0) event[text.slice(0, cut)] = text.slice(cut + 2);
        }
        if (event.event === "record") records.push(JSON.parse(event.data));
        else if (event.event === "resync") {
          await this.reset();
          this.pass({ reset: true });
          return true;
        } else if (event.event === "end") {
          this.take(records);
          this.pass({ after, records });
          const { reason } = JSON.parse(event.data);
          if (reason === "stopped") {
            this.set("ended", "the supervisor has ended its sessions");
            this.pass({});
          }
          await this.wait(null);
          return true;
        }
      }
      this.take(records);
      this.pass({ after, records });
    }
  }

  /** Notice silence: a computer that slept, or a supervisor that hangs. */
  watch() {
    if (document.hidden || this.status !== "live" || this.silentS() < SILENT_S) return;
    this.set("lost", "nothing was heard from the supervisor");
    this.connection?.abort();
  }
}
