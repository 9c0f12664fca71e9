// Feeds the page with records of made-up sessions, as its stream would: `feed(sessions, recordsPerSecond)`.
window.feed = (n, rate) => {
  page.stream.pause();
  page.stream.set("live");
  let seq = page.live.seq;
  const record = (type, id, event, to, metadata = {}, outcome = "transition") => ({ seq: ++seq, timestamp: Date.now() / 1000, entity_type: type, entity_id: id, event, to_status: to, outcome, actor: "scripted", cause_id: seq - 1, metadata });
  const first = [];
  const names = [];
  for (let i = 0; i < n; i++) {
    const parent = i % 10 === 0 ? "" : `agent-${i - (i % 10)}/`;
    const id = `${parent}${i % 10 === 0 ? "agent" : "part"}-${i}`;
    names.push(id);
    first.push(record("session", id, "Born", "Initializing", { agent: "coder", limits: {} }, "born"));
    first.push(record("agent", `${id}:a1`, "Born", "starting", {}, "born"), record("agent", `${id}:a1`, "agent_ready", "working"), record("session", id, "SessionStarted", "Running"));
    first.push(record("turn", `${id}:t1`, "Born", "RUNNING", {}, "born"));
  }
  page.take(first);
  const calls = new Map();
  const step = () => {
    const id = names[Math.floor(Math.random() * names.length)];
    const open = calls.get(id);
    const number = (open?.number || 0) + (open?.isOpen ? 0 : 1);
    calls.set(id, { number, isOpen: !open?.isOpen });
    return open?.isOpen
      ? record("turn", `${id}:t1`, "tool_completed", "RUNNING", { call_id: `c${number}`, outcome: "completed" })
      : record("turn", `${id}:t1`, "tool_started", "TOOL_USE", { number, call_id: `c${number}`, title: `make test-${number}`, tool_kind: "execute" });
  };
  window.feeding = setInterval(() => {
    page.stream.heard();
    page.take(Array.from({ length: Math.max(1, Math.round(rate / 20)) }, step));
  }, 50);
  page.frames.updates.length = 0;
};

// Gives the page, at once, n records of sessions that begin, work and end, one after the other.
window.pour = (n) => {
  const now = Date.now() / 1000;
  let seq = page.live.seq;
  const until = seq + n;
  while (seq < until) {
    const list = [];
    const record = (type, id, event, to, metadata = {}, outcome = "transition") => list.push({ seq: ++seq, timestamp: now, entity_type: type, entity_id: id, event, to_status: to, outcome, actor: "scripted", cause_id: seq - 1, metadata });
    const id = `short-${seq}`;
    record("session", id, "Born", "Initializing", { agent: "coder", limits: {} }, "born");
    record("agent", `${id}:a1`, "Born", "starting", {}, "born");
    record("agent", `${id}:a1`, "agent_ready", "working");
    record("session", id, "SessionStarted", "Running");
    record("turn", `${id}:t1`, "Born", "RUNNING", {}, "born");
    for (let number = 1; number <= 20; number++) {
      record("turn", `${id}:t1`, "tool_started", "TOOL_USE", { number, call_id: `c${number}`, title: `make test-${number}`, tool_kind: "execute" });
      record("turn", `${id}:t1`, "tool_completed", "RUNNING", { call_id: `c${number}`, outcome: "completed" });
    }
    record("session", id, "Usage", "Running", { used: { cost_usd: 0.01, input_tokens: 1000 } }, "fact");
    record("session", id, "OperatorStop", "Stopped", { outcome: "completed" });
    record("session", id, "Ended", "Stopped", { rung: "request", took_s: 0.1 }, "fact");
    page.take(list);
  }
};
