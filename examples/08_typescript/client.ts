// A client in another language: Temporal's own SDK and plain JSON; nothing of perdure on this side.
//     npm ci && npm start -- "Where is order 77?"      (needs a worker: python examples/11_worker.py)
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, Connection, WithStartWorkflowOperation } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';

const { connectionOptions, namespace } = loadClientConnectConfig(); // TEMPORAL_ADDRESS, a profile, TLS, an API key
const { workflow } = new Client({ connection: await Connection.connect(connectionOptions), namespace });
const startWorkflowOperation = new WithStartWorkflowOperation('AgentWorkflow', {
  workflowId: `support-${randomUUID()}`, // the conversation's id; one that is open already is gone on with
  workflowIdConflictPolicy: 'USE_EXISTING',
  taskQueue: process.env.PERDURE_TASK_QUEUE ?? 'perdure',
  args: [{ agent: 'support', mode: 'session' }],
});
const message = { content: process.argv[2] ?? 'Where is order 77?', id: randomUUID() }; // the same id counts once
const { task_id } = await workflow.executeUpdateWithStart<any, any, any>('send_message', { startWorkflowOperation, args: [message] });
const chat = await startWorkflowOperation.workflowHandle();
await chat.signal('inject_user_message', 'Be brief, please.'); // joins the turn at its next model call
console.log('status:', await chat.query('status'));
let turn: any; // { task_id, state, response: { content, usage, … }, error_type, error }
while ((turn = await chat.query<any, [string]>('turn', task_id)).state === 'running') await sleep(200);
console.log('answer:', turn.response?.content ?? turn.error);
await chat.signal('close');
