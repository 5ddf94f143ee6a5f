import { useChat } from '@ai-sdk/react';
import { DefaultChatTransport, isToolUIPart, type UIMessage } from 'ai';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const api = '/ui/desk';
const STATES: Record<string, string> = {
  'approval-requested': 'waits for approval',
  'output-available': 'done',
  'output-denied': 'denied',
  'output-error': 'failed',
};

const transport = new DefaultChatTransport({
  api,
  prepareReconnectToStreamRequest: ({ id }) => ({ api: `${api}/${id}/stream?ended=true&wait=true` }),
});

function isApprovalRequest(part: UIMessage['parts'][number]) {
  return isToolUIPart(part) && part.state === 'approval-requested';
}

function Part({ part }: { part: UIMessage['parts'][number] }) {
  if (part.type === 'text') return <p>{part.text}</p>;
  if (!isToolUIPart(part)) return null;
  const name = part.type === 'dynamic-tool' ? part.toolName : part.type.slice('tool-'.length);
  return <p><code>{name} {JSON.stringify(part.input)}</code> {STATES[part.state] ?? 'at work'}</p>;
}

function Chat({ id, earlier }: { id: string; earlier: UIMessage[] }) {
  const [text, setText] = useState('');
  const { messages, setMessages, sendMessage, resumeStream, status, error } = useChat({
    id,
    messages: earlier,
    resume: earlier.at(-1)?.role === 'user', // its answer is not there yet
    transport,
  });
  const isBusy = status === 'submitted' || status === 'streaming';
  const waits = status === 'ready' && (messages.at(-1)?.parts ?? []).some(isApprovalRequest);
  useEffect(() => {
    if (!waits) return;
    setMessages((all) => all.slice(0, -1)); // the stream has this answer from its start, and stays open
    void resumeStream();
  }, [waits]);
  return (
    <main>
      <h1>Invoice desk</h1>
      {messages.map((message) => (
        <section key={message.id} data-role={message.role}>
          {message.parts.map((part, index) => <Part key={index} part={part} />)}
        </section>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={(event) => { event.preventDefault(); sendMessage({ text }); setText(''); }}>
        <input value={text} onChange={(event) => setText(event.target.value)} aria-label="Message" autoFocus />
        <button disabled={isBusy || !text.trim()}>Send</button>
      </form>
    </main>
  );
}

// A chat is a session. The address keeps its id, so a reload, or another device, continues it.
const id = location.hash.slice(1) || crypto.randomUUID();
location.hash = id;
const earlier = await fetch(`${api}/${id}/messages`);
if (!earlier.ok) throw new Error(await earlier.text());
createRoot(document.getElementById('page')!).render(<Chat id={id} earlier={await earlier.json()} />);
