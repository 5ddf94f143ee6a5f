// What useChat is made of, of the package `ai` in two versions: AbstractChat over DefaultChatTransport.

import * as ai6 from 'ai-6';
import * as ai7 from 'ai';
import { Log, serve, warnings } from './lines.mjs';

const SDKS = { 6: ai6, 7: ai7 };

class State {
  error = undefined;
  log = new Log();
  #messages;
  #status = 'ready';

  constructor(messages) {
    this.#messages = messages;
  }
  get status() {
    return this.#status;
  }
  set status(status) {
    this.#status = status;
    this.log.add(status);
  }
  get messages() {
    return this.#messages;
  }
  set messages(messages) {
    this.#messages = messages;
    this.log.add('messages');
  }
  pushMessage = (message) => {
    this.messages = this.#messages.concat(this.snapshot(message));
  };
  popMessage = () => {
    this.messages = this.#messages.slice(0, -1);
  };
  replaceMessage = (index, message) => {
    this.messages = this.#messages.with(index, this.snapshot(message));
  };
  snapshot = (value) => structuredClone(value);
}

function build(sdk, { api, chatId, headers, messages, ended }) {
  const state = new State(messages ?? []);
  class Chat extends sdk.AbstractChat {
    errors = [];
    chunks = [];
    finished = 0;
    data = [];
    state = state;
  }
  const chat = new Chat({
    id: chatId,
    state,
    transport: new sdk.DefaultChatTransport({
      api,
      headers,
      fetch: async (...request) => record(chat, await fetch(...request)),
      prepareReconnectToStreamRequest: ({ id, api }) => ({ api: `${api}/${id}/stream${ended ? '?ended=true' : ''}`, headers }),
    }),
    sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithApprovalResponses,
    onError: (error) => chat.errors.push(String(error)),
    onFinish: (end) => {
      chat.finished += 1;
      chat.end = { isAbort: end.isAbort, isDisconnect: end.isDisconnect, isError: end.isError, finishReason: end.finishReason };
      state.log.add('finish');
    },
    onData: (part) => chat.data.push(part),
  });
  return chat;
}

// The types of the chunks, as they come: what the chat shows at the end does not say what was taken back before.
function record(chat, response) {
  if (!response.body) return response;
  const decoder = new TextDecoder();
  const transform = (bytes, controller) => {
    for (const [, type] of decoder.decode(bytes, { stream: true }).matchAll(/^data: \{"type":"([^"]+)"/gm)) chat.chunks.push(type);
    controller.enqueue(bytes);
  };
  return new Response(response.body.pipeThrough(new TransformStream({ transform })), response);
}

const chats = new Map();

function hold(chat) {
  return {
    messages: chat.messages, status: chat.status, error: chat.error ? String(chat.error) : null,
    end: chat.end ?? null, data: chat.data, chunks: chat.chunks, warnings: warnings.splice(0),
  };
}

async function after(chat, isSent, act) {
  const before = chat.finished;
  await act();
  if (isSent) await chat.state.log.until(() => chat.finished > before && chat.status !== 'streaming');
  return hold(chat);
}

serve({
  open: ({ key, sdk, ...given }) => void chats.set(key, build(SDKS[sdk], given)),
  move: ({ key, api }) => void (chats.get(key).transport.api = api),
  send: ({ key, text, messageId }) => {
    const message = messageId ? { id: messageId, role: 'user', parts: [{ type: 'text', text }] } : { text };
    return after(chats.get(key), false, () => chats.get(key).sendMessage(message));
  },
  approve: ({ key, sends, approvalId, ...decision }) =>
    after(chats.get(key), sends ?? true, () => chats.get(key).addToolApprovalResponse({ id: approvalId, ...decision })),
  output: async ({ key, ...given }) => {
    await chats.get(key).addToolOutput(given);
    return after(chats.get(key), false, () => chats.get(key).sendMessage());
  },
  submit: ({ key }) => after(chats.get(key), false, () => chats.get(key).sendMessage()),
  resume: ({ key }) => after(chats.get(key), false, () => chats.get(key).resumeStream()),
  stop: ({ key }) => after(chats.get(key), false, () => chats.get(key).stop()),
  regenerate: ({ key }) => after(chats.get(key), false, () => chats.get(key).regenerate()),
  until: ({ key, text, messages }) =>
    chats.get(key).state.log.until(() => {
      const held = chats.get(key).messages;
      return held.length >= (messages ?? 1) && JSON.stringify(held.at(-1)).includes(text);
    }),
  state: ({ key }) => hold(chats.get(key)),
});
