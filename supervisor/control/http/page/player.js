// Time: play, pause and scrub through the records that the page has; dense stretches and what went wrong can be seen.
import { html, Component } from "./vendor/preact-htm.js";
import { clock, moment } from "./format.js";

const BAD = new Set(["AbortRecord", "Stalled", "FatalError", "task_failed"]);

export class Player extends Component {
  componentDidMount() {
    this.props.app.player = this;
    this.draw();
  }

  componentWillUnmount() {
    this.props.app.player = null;
  }

  draw() {
    const { app } = this.props;
    const canvas = this.canvas;
    if (!canvas?.clientWidth) return;
    const { from, to } = app.extent();
    const key = `${canvas.clientWidth} ${app.history.length} ${Math.round(from)} ${Math.round(to)} ${app.theme}`;
    if (key === this.key || (this.at && performance.now() - this.at < 1000 && app.theme === this.theme)) return;
    Object.assign(this, { key, at: performance.now(), theme: app.theme });
    const ratio = devicePixelRatio || 1;
    const w = canvas.clientWidth;
    const h = canvas.clientHeight;
    canvas.width = w * ratio;
    canvas.height = h * ratio;
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const css = getComputedStyle(document.documentElement);
    const bins = new Float64Array(Math.max(1, Math.floor(w / 2)));
    const bad = new Set();
    for (const r of app.history) {
      const i = Math.min(bins.length - 1, Math.max(0, Math.floor(((r.timestamp - from) / (to - from || 1)) * bins.length)));
      bins[i]++;
      if (BAD.has(r.event)) bad.add(i);
    }
    const most = Math.log1p(Math.max(1, ...bins));
    ctx.fillStyle = css.getPropertyValue("--text-3").trim();
    bins.forEach((n, i) => n && ctx.fillRect(i * 2, h - 2 - (Math.log1p(n) / most) * (h - 8), 1.5, 1 + (Math.log1p(n) / most) * (h - 8)));
    ctx.fillStyle = css.getPropertyValue("--red").trim();
    for (const i of bad) ctx.fillRect(i * 2, 0, 2, 4);
  }

  render({ app, now }) {
    const { from, to } = app.extent();
    const at = app.isPresent() ? to : now;
    return html`<footer class="player" aria-label="Time">
      <button class="play" aria-label=${app.playing ? "Pause" : "Play from here"} onClick=${() => app.act("play")}><svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">${app.playing ? html`<path d="M3 2v8M9 2v8" stroke="currentColor" stroke-width="2.4" />` : html`<path d="M3 1.5v9l7-4.5z" fill="currentColor" />`}</svg></button>
      <label class="speed"><span class="vh">Speed</span><select value=${app.speed} onChange=${(e) => app.setSpeed(Number(e.target.value))}>${[1, 5, 20, 100].map((one) => html`<option key=${one} value=${one}>${one}×</option>`)}</select></label>
      <div class="scrub"><canvas ref=${(one) => (this.canvas = one)} aria-hidden="true"></canvas>
        <i class="cursor" style=${{ left: `${((at - from) / (to - from || 1)) * 100}%` }}></i>
        <input type="range" min=${from} max=${to} step="any" value=${at} aria-label="Moment that is shown" aria-valuetext=${moment(at)} onInput=${(e) => app.seek(Number(e.target.value) >= to - 0.05 ? Infinity : Number(e.target.value))} /></div>
      <div class="when"><b>${clock(now)}</b><span>record ${app.model.seq}</span></div>
      ${app.isJournal() ? "" : html`<button class="live" aria-pressed=${app.isPresent()} onClick=${() => app.act("present")}>${app.isPresent() ? "Live" : "Back to live"}</button>`}
    </footer>`;
  }
}
