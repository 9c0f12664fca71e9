// Classification of an agent (spec 000). The supervisor decides with `diagnostics/visual_state.py`; the page decides by
// the same rules between two answers of the supervisor, and at moments of the past. A test compares the two.

/** The seven visual states, in the order in which they are counted. */
export const VISUAL = {
  STALLED: { indicator: "◐", means: "at work, and silent for too long" },
  RUNNING: { indicator: "●", means: "at work, with a recent sign of life" },
  SPAWNING: { indicator: "◔", means: "its agent is launching" },
  MERGING: { indicator: "⇄", means: "commits, pushes or merges its result" },
  IDLE: { indicator: "□", means: "waits for a task, or for its next attempt" },
  UNKNOWN: { indicator: "◌", means: "the facts fit no other state" },
  DEAD: { indicator: "○", means: "has ended, well or badly" },
};

const ENDED = ["done", "failed", "cancelled", "killed"];
const WAITING = ["idle", "waiting", "paused"];
const MERGING = ["merging", "committing", "pushing"];
const ACTIVE = ["", "starting", "spawning", "working", "running", "in_progress"];

/** Visual state by the state of the agent's machine and the facts around it; times are seconds of one clock. */
export function visualState(agentState, facts) {
  const { spawnedAt, now, heartbeatAt = null, pid = null, woken = false, stallS = 300, spawnS = 60, mergingS = 600 } = facts;
  const status = (facts.status || "").toLowerCase();
  const classified = ["starting", "working", "idle"].includes(agentState);
  const hasEnded = ENDED.includes(status) || (pid === null && WAITING.includes(status));
  if (agentState === "dead" || (classified && hasEnded)) return "DEAD";
  const silentS = now - Math.max(spawnedAt, heartbeatAt ?? spawnedAt);
  if (agentState === "starting" && ACTIVE.includes(status)) return now - spawnedAt >= spawnS ? "DEAD" : "SPAWNING";
  if (agentState === "working" && ACTIVE.includes(status)) return woken || silentS >= stallS ? "STALLED" : "RUNNING";
  if (agentState === "working" && MERGING.includes(status)) return silentS >= mergingS ? "STALLED" : "MERGING";
  if (agentState === "idle" && (WAITING.includes(status) || !status)) return "IDLE";
  return "UNKNOWN";
}

const GIT = { commit: "committing", merge: "merging", rebase: "merging", push: "pushing" };
const GIT_VALUED = ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--attr-source"];

/** Status of an agent while a call with this title runs: "pushing" for `cd x && git -C y push`; else "". */
export function gitStatus(title) {
  let isGit = false;
  let isValue = false;
  for (const [word] of title.matchAll(/[^\s;&|()'"`]+|[;&|()]/g)) {
    if (isValue) isValue = false;
    else if (isGit && word.startsWith("-")) isValue = GIT_VALUED.includes(word);
    else if (isGit && Object.hasOwn(GIT, word)) return GIT[word];
    else isGit = word.slice(word.lastIndexOf("/") + 1) === "git";
  }
  return "";
}
