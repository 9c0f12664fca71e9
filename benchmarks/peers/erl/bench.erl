%% What Erlang/OTP takes for the same: each function measures once and prints one figure, less is better.
%% A time is the smaller of wall-clock and processor time, so that a busy machine never flatters us.
-module(bench).
-behaviour(gen_server).
-export([main/1, start_worker/0]).
-export([init/1, handle_call/3, handle_cast/2]).

main([What, Count]) ->
    [io:format("~p~n", [float(measure(One, list_to_integer(Count)))]) || One <- asked(What)],
    halt(0).

asked("all") -> ["tell", "ask", "life", "bytes", "tree"];
asked(What) -> [What].

%% us for one cast, until the last was handled
measure("tell", N) ->
    {ok, P} = gen_server:start(?MODULE, [], []),
    spent_us(fun() -> casts(P, N), N = gen_server:call(P, seen, infinity) end) / N;
%% us, p50 of gen_server:call
measure("ask", N) ->
    {ok, P} = gen_server:start(?MODULE, [], []),
    [gen_server:call(P, I) || I <- lists:seq(1, 1000)],
    Times = lists:sort([call_ns(P, I) || I <- lists:seq(1, N)]),
    lists:nth((N + 1) div 2, Times) / 1000;
%% us for the start and stop of one child of a supervisor
measure("life", N) ->
    {ok, S} = bench_sup:start_link(simple),
    spent_us(fun() -> live(S, N) end) / N;
%% bytes of an idle gen_server under a supervisor, as the VM counts them
measure("bytes", N) ->
    {ok, S} = bench_sup:start_link(simple),
    erlang:garbage_collect(),
    Before = erlang:memory(processes),
    [{ok, _} = supervisor:start_child(S, []) || _ <- lists:seq(1, N)],
    (erlang:memory(processes) - Before) / N;
%% ms for the end of N supervisors with N children each, from the top
measure("tree", N) ->
    {ok, Top} = bench_sup:start_link(one),
    [grow(Top, I, N) || I <- lists:seq(1, N)],
    unlink(Top),
    Monitor = monitor(process, Top),
    spent_us(fun() -> exit(Top, shutdown), receive {'DOWN', Monitor, _, _, _} -> ok end end) / 1000.

spent_us(Do) ->
    {Used0, _} = statistics(runtime),
    Since = erlang:monotonic_time(nanosecond),
    Do(),
    Wall = (erlang:monotonic_time(nanosecond) - Since) / 1000,
    {Used1, _} = statistics(runtime),
    case (Used1 - Used0) * 1000 of
        Used when Used >= 10000 -> min(Wall, float(Used));
        _TooShortForItsClock -> Wall
    end.

call_ns(P, I) ->
    Since = erlang:monotonic_time(nanosecond),
    I = gen_server:call(P, I),
    erlang:monotonic_time(nanosecond) - Since.

casts(_, 0) -> ok;
casts(P, N) -> gen_server:cast(P, N), casts(P, N - 1).

live(S, N) ->
    Children = [begin {ok, P} = supervisor:start_child(S, []), P end || _ <- lists:seq(1, N)],
    [ok = supervisor:terminate_child(S, P) || P <- Children].

grow(Top, I, N) ->
    Spec = #{id => I, start => {bench_sup, start_link, [one]}, type => supervisor, shutdown => infinity},
    {ok, S} = supervisor:start_child(Top, Spec),
    Worker = {?MODULE, start_worker, []},
    [{ok, _} = supervisor:start_child(S, #{id => J, start => Worker, shutdown => 5000}) || J <- lists:seq(1, N)].

start_worker() -> gen_server:start_link(?MODULE, [], []).

init(_) -> {ok, 0}.
handle_cast(_, N) -> {noreply, N + 1}.
handle_call(seen, _, N) -> {reply, N, N};
handle_call(Message, _, N) -> {reply, Message, N}.
