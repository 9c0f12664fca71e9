// Answers of the supervisor that are no records: causes, transcripts, graphs, quality, signs of life. Each is kept with its
// age, and read again when it is needed and has become old, an error soon. What takes the supervisor long is asked for
// rarely. The answers that were needed last are kept.
import { ApiError, get, inPath } from "./api.js";

const KEPT_MAX = 60;
const ERROR_S = 5; // an error is not kept longer: what it says may be over
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

  /** The entry under `key`, made if there is none: the one that was needed last, in the order in which they go. */
  entry(key, make) {
    const entry = this.kept.get(key) || make();
    this.kept.delete(key);
    this.kept.set(key, entry);
    if (this.kept.size > KEPT_MAX) this.kept.delete(this.kept.keys().next().value);
    return entry;
  }

  /** What is known under `path`: {value, error, at, loading}. It is read again when it is older than `maxAgeS`, or when
   * `stamp`, which stands for what it depends on, has changed. */
  read(path, maxAgeS, stamp = 0) {
    const entry = this.entry(path, () => ({ value: null, error: "", at: -Infinity, stamp: null, tookS: 0, loading: false }));
    const oldS = performance.now() / 1000 - entry.at;
    const mostS = entry.error ? Math.min(maxAgeS, ERROR_S) : maxAgeS;
    const isDue = oldS > Math.max(mostS, entry.tookS * SHARE) || (entry.stamp !== stamp && oldS > Math.max(1.5, entry.tookS * 20));
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
    const entry = this.entry(`text ${id}`, () => ({ text: "", next: 0, error: "", at: -Infinity, ended: false, loading: false }));
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
    if (this.asksSigns || !this.app.canAsk() || performance.now() / 1000 < (this.nextSigns || 0)) return;
    this.asksSigns = true;
    const begin = performance.now();
    try {
      let after = 0;
      do {
        const page = await get(`/sessions?limit=1000&after=${after}`);
        model.takeSigns(page.items, now);
        after = page.next;
      } while (after !== null);
      this.app.changed();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    } finally {
      this.asksSigns = false;
      const tookS = (performance.now() - begin) / 1000;
      this.nextSigns = performance.now() / 1000 + Math.max(5, tookS * SHARE);
    }
  }
}
