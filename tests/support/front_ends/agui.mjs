// HttpAgent of @ag-ui/client. A run's answer: the events that passed the client's own checks, and what it then holds.

import { HttpAgent, runHttpRequest, transformHttpEventStream } from '@ag-ui/client';
import { Log, serve, warnings } from './lines.mjs';

class Agent extends HttpAgent {
  log = new Log();

  // perdure's stream can be continued; connectAgent() of the client asks for it.
  connect(input) {
    const query = new URLSearchParams({ threadId: input.threadId, runId: input.runId });
    const init = { headers: this.headers, signal: this.abortController.signal };
    return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}?${query}`, init)));
  }
}

const agents = new Map();

async function perform(key, method, parameters) {
  const agent = agents.get(key);
  const before = agent.log.entries.length;
  let failure = null;
  try {
    await agent[method](parameters, { onEvent: ({ event }) => agent.log.add(event) });
  } catch (error) {
    failure = String(error);
  }
  return { ...hold(agent), failure, events: agent.log.entries.slice(before) };
}

function hold(agent) {
  return { messages: agent.messages, interrupts: agent.pendingInterrupts, warnings: warnings.splice(0) };
}

serve({
  open: ({ key, url, threadId, headers, messages }) => {
    agents.set(key, new Agent({ url, threadId, headers, initialMessages: messages ?? [] }));
  },
  move: ({ key, url }) => void (agents.get(key).url = url),
  add: ({ key, message }) => agents.get(key).addMessage(message),
  run: ({ key, ...parameters }) => perform(key, 'runAgent', parameters),
  connect: ({ key, ...parameters }) => perform(key, 'connectAgent', parameters),
  until: ({ key, type, count }) =>
    agents.get(key).log.until((events) => events.filter((event) => event.type === type).length >= (count ?? 1)),
  state: ({ key }) => hold(agents.get(key)),
  abort: ({ key }) => agents.get(key).abortRun(),
});
