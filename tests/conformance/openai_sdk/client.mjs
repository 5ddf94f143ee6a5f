// The official SDK for Node at perdure's service: one scenario for each argument, what came of it as JSON.

import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: 'ada', maxRetries: 0 });

const scenarios = {
  async chat() {
    const stream = client.chat.completions.stream({
      model: 'talker',
      messages: [{ role: 'user', content: 'hi' }],
      stream_options: { include_usage: true },
    });
    let text = '';
    stream.on('content', (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    return { text, content: final.choices[0].message.content, tokens: final.usage.total_tokens };
  },

  async tools() {
    const asked = [];
    const runner = client.chat.completions.runTools({
      model: 'forecaster',
      messages: [{ role: 'user', content: 'weather?' }],
      stream: true,
      tools: [
        {
          type: 'function',
          function: {
            name: 'weather',
            description: 'Look up the weather.',
            parameters: { type: 'object', properties: { place: { type: 'string' } } },
            parse: JSON.parse,
            function: ({ place }) => {
              asked.push(place);
              return `sun in ${place}`;
            },
          },
        },
      ],
    });
    return { content: await runner.finalContent(), asked };
  },

  async responses() {
    const stream = client.responses.stream({ model: 'payer', input: 'pay', tools: [] });
    const asked = await stream.finalResponse();
    const request = asked.output.find((item) => item.type === 'mcp_approval_request');
    const answer = { type: 'mcp_approval_response', approval_request_id: request.id, approve: true };
    const done = await client.responses
      .stream({ model: 'payer', previous_response_id: asked.id, input: [answer] })
      .finalResponse();
    return { name: request.name, before: asked.output_text, text: done.output_text, kinds: done.output.map((i) => i.type) };
  },

  async background() {
    const begun = await client.responses.create({ model: 'talker', input: 'hi', background: true, stream: true });
    const deltas = [];
    let last;
    let id;
    for await (const event of begun) {
      id ??= event.response?.id;
      last = event.sequence_number;
      if (event.type === 'response.output_text.delta') {
        deltas.push(event.delta);
        break; // the connection is closed here
      }
    }
    for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: last })) {
      if (event.type === 'response.output_text.delta') deltas.push(event.delta);
    }
    const whole = await client.responses.stream({ response_id: id, starting_after: last }).finalResponse();
    return { text: deltas.join(''), whole: whole.output_text };
  },

  async pieces() {
    const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }];
    const messages = [{ role: 'user', content: 'Paid?' }];
    const stream = client.chat.completions.stream({ model: 'helper', messages, tools });
    let text = '';
    let written = '';
    stream.on('content', (delta) => (text += delta));
    stream.on('tool_calls.function.arguments.delta', (event) => (written += event.arguments_delta));
    const { message } = (await stream.finalChatCompletion()).choices[0];
    const whole = JSON.parse(message.tool_calls[0].function.arguments);
    return { text, content: message.content, written: JSON.parse(written), arguments: whole };
  },

  async response_pieces() {
    const tools = [{ type: 'function', name: 'look', parameters: { type: 'object', properties: {} }, strict: false }];
    const stream = client.responses.stream({ model: 'helper', input: 'Paid?', tools });
    let text = '';
    let written = '';
    stream.on('response.output_text.delta', (event) => (text += event.delta));
    stream.on('response.function_call_arguments.delta', (event) => (written += event.delta));
    const final = await stream.finalResponse();
    const call = final.output.find((item) => item.type === 'function_call');
    return { text, content: final.output_text, written: JSON.parse(written), arguments: JSON.parse(call.arguments) };
  },

  async errors() {
    const names = [];
    const wrong = [
      () => client.models.retrieve('nothing'),
      () => client.responses.create({ model: 'talker', input: [] }),
      () => client.responses.retrieve('resp_x'),
      () => new OpenAI({ baseURL: process.env.BASE_URL, apiKey: 'eve', maxRetries: 0 }).models.list(),
      () => client.chat.completions.create({ model: 'talker', messages: [{ role: 'user', content: 'x' }], n: 3 }),
    ];
    for (const ask of wrong) {
      try {
        await ask();
      } catch (error) {
        names.push([error.constructor.name, error.code, error.param]);
      }
    }
    return names;
  },
};

console.log(JSON.stringify(await scenarios[process.argv[2]]()));
