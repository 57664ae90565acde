%% Run inside a test node at boot (erl -eval file:script(...)): evaluates what the tests send.
%%
%% One request a connection, frames with a 4-byte length. Request: the token, then Erlang expressions that end with a
%% dot. Answer: "+" and the value as JSON, or "-" and the reason. A process of its own, outside RabbitMQ's supervision
%% tree: it goes on while the application is stopped and while the broker boots.

Token = list_to_binary(os:getenv("WARREN_EVAL_TOKEN")),
{ok, Address} = inet:parse_address(os:getenv("WARREN_EVAL_ADDRESS")),
Port = list_to_integer(os:getenv("WARREN_EVAL_PORT")),

Evaluate = fun(Source) ->
    try
        {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Source)),
        {ok, Expressions} = erl_parse:parse_exprs(Tokens),
        {value, Value, _} = erl_eval:exprs(Expressions, erl_eval:new_bindings()),
        [$+, rabbit_json:encode(Value)]
    catch
        Class:Reason:Stack -> [$-, unicode:characters_to_binary(io_lib:format("~p:~tp at ~0tp", [Class, Reason, Stack]))]
    end
end,

Serve = fun(Socket) ->
    try gen_tcp:recv(Socket, 0, 5000) of
        {ok, <<Given:(byte_size(Token))/binary, Source/binary>>} when Given =:= Token ->
            gen_tcp:send(Socket, Evaluate(Source));
        _ ->
            refused
    after
        gen_tcp:close(Socket)
    end
end,

Accept = fun Next(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    spawn(fun() -> Serve(Socket) end),
    Next(Listener)
end,

spawn(fun() ->
    Options = [binary, {packet, 4}, {active, false}, {reuseaddr, true}, {backlog, 128}, {ip, Address}],
    case gen_tcp:listen(Port, Options) of
        {ok, Listener} -> Accept(Listener);
        {error, Reason} -> io:format(standard_error, "evaluator: ~p~n", [Reason]), halt(1)
    end
end).
