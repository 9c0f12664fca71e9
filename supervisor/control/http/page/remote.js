// Answers of the supervisor that are no records: causes, transcripts, graphs, quality, signs of life. Each is kept with its
// age, and read again when it is needed and has become old. What takes the supervisor long is asked for rarely.
import { ApiError, get, inPath } from "./api.js";

const KEPT_MAX = 60;
const SHARE = 250; // a kind of question may take one part in so many of the supervisor's time
const TEXT_MAX = 60_000;

export class Remote {
  constructor(app) {
    this.app = app;
    this.kept = new Map();
  }

  clear() {
    this.kept.clear();
  }

  /** What is known under `path`: {value, error, at, loading}. It is read again when it is older than `maxAgeS`, or when
   * `stamp`, which stands for what it depends on, has changed. */
  read(path, maxAgeS, stamp = 0) {
    let entry = this.kept.get(path);
    if (!entry) {
      this.kept.set(path, (entry = { value: null, error: "", at: -Infinity, stamp: null, tookS: 0, loading: false }));
      if (this.kept.size > KEPT_MAX) this.kept.delete(this.kept.keys().next().value);
    }
    const oldS = performance.now() / 1000 - entry.at;
    const isDue = oldS > Math.max(maxAgeS, entry.tookS * SHARE) || (entry.stamp !== stamp && oldS > Math.max(1.5, entry.tookS * 20));
    if (isDue && !entry.loading && !document.hidden && this.app.canAsk()) this.load(path, entry, stamp);
    return entry;
  }

  async load(path, entry, stamp) {
    entry.loading = true;
    const begin = performance.now();
    try {
      entry.value = await get(path);
      entry.error = "";
    } catch (error) {
      entry.error = error instanceof ApiError ? error.message : String(error);
    }
    entry.loading = false;
    entry.at = performance.now() / 1000;
    entry.tookS = (performance.now() - begin) / 1000;
    entry.stamp = stamp;
    this.app.changed();
  }

  why(id, stamp) {
    return this.read(`/causes/${inPath(id)}`, this.app.isJournal() ? Infinity : 600, stamp);
  }

  /** The end of a transcript, which grows while the session works. */
  transcript(id, ended) {
    const key = `text ${id}`;
    let entry = this.kept.get(key);
    if (!entry) this.kept.set(key, (entry = { text: "", next: 0, error: "", at: -Infinity, ended: false, loading: false }));
    const oldS = performance.now() / 1000 - entry.at;
    const isDue = entry.ended ? false : oldS > (ended ? 0.3 : 1.5);
    if (isDue && !entry.loading && !document.hidden && this.app.canAsk()) this.loadText(id, entry);
    return entry;
  }

  async loadText(id, entry) {
    entry.loading = true;
    try {
      const { text, next, ended } = await get(`/transcripts/${inPath(id)}?after=${entry.next}`);
      entry.text = (entry.text + text).slice(-TEXT_MAX);
      entry.next = next;
      entry.ended = ended && text === "";
      entry.error = "";
    } catch (error) {
      entry.error = error instanceof ApiError ? error.message : String(error);
      if (error.status === 404 || error.status === 409) entry.ended = true;
    }
    entry.loading = false;
    entry.at = performance.now() / 1000;
    this.app.changed();
  }

  /** Signs of life of all living sessions, which are in no record. */
  async signs(model, now) {
    if (this.hearing || !this.app.canAsk() || performance.now() / 1000 < (this.nextSigns || 0)) return;
    this.hearing = true;
    const begin = performance.now();
    try {
      let after = 0;
      do {
        const page = await get(`/sessions?limit=1000&after=${after}`);
        model.hear(page.items, now);
        after = page.next;
      } while (after !== null);
      this.app.changed();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    } finally {
      this.hearing = false;
      const tookS = (performance.now() - begin) / 1000;
      this.nextSigns = performance.now() / 1000 + Math.max(5, tookS * SHARE);
    }
  }
}
