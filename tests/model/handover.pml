/* handover.pml: prefill -> decode hand-over of a request's KV.
 *
 * One router, one P, ND decode workers, one messager, NREQ requests, MAXATT attempts each.  A "job" j is one attempt of one
 * request.  Every pool is ONE block of LAYERS pieces, the smallest that works, so each conflict is a reuse.
 * A request answers NTOK tokens: index base[j] comes from P, the next from D.
 *
 * The network is a set of messages.  A message once sent may be delivered at any later time, any number of times, in any
 * order; when its sender crashes it may also be lost.  A delivery that changes nothing is no transition, so that
 * the graph has no cycles and `timeout` means quiescence.  Timers (lease, stall, deadline) may fire at any moment unless
 * switched off.  SIGSTOP of a process is an interleaving in which it does not move.
 * Default = the protocol.  S_x = without one of its rules, as first written.  MUT=n = a seeded bug (README.md). */
#ifndef NREQ
#define NREQ 2
#endif
#ifndef MAXATT
#define MAXATT 1
#endif
#ifndef ND
#define ND 1
#endif
#ifndef MUT
#define MUT 0
#endif
#ifndef CRP                     /* crashes allowed of P, of each D, of M, and of all together */
#define CRP 0
#endif
#ifndef CRD
#define CRD 0
#endif
#ifndef CRM
#define CRM 0
#endif
#ifndef CRALL
#define CRALL 9
#endif
#ifndef CXL                     /* 1: the client may cancel, or the deadline strike, at any time */
#define CXL 0
#endif
#ifndef SPUR                    /* 1: a lease may expire though P renews it (P or the network was slow) */
#define SPUR 0
#endif
#ifndef STALL                   /* 1: the messager's stall limit may strike at any time */
#define STALL 0
#endif
#ifndef LATE                    /* 1: P may give up waiting for a grant and go to the next D */
#define LATE 0
#endif
#ifndef PSTALL                  /* 1: P may give up waiting for KvSent or the acknowledgement of the first token */
#define PSTALL 0
#endif
#ifndef LINK                    /* 1: the link between P and decode worker 0 may restart once, while P waits for a grant there; 2: at any time */
#define LINK 0
#endif
#ifndef SQUAT                   /* 1: another process may hand its memory to the first or to a restarted messager as D's */
#define SQUAT 0
#endif
#ifndef FORGE                   /* 1: a messager may report KV of a lease that it has not opened (its peer on another host lies) */
#define FORGE 0
#endif
#ifndef STOPM                   /* 1: the messager may stop for ever */
#define STOPM 0
#endif
#ifndef FULL0                   /* 1: decode worker 0 never has room; request 0 asks it, request 1 asks the last one */
#define FULL0 0
#endif
#ifndef NEEDANS                 /* 1: at quiescence each request must have been answered, not only ended */
#define NEEDANS 0
#endif

#ifndef LAYERS
#define LAYERS 2
#endif
#define NTOK 2
#ifndef ATT1                    /* attempts of request 1 */
#define ATT1 MAXATT
#endif
#define ATT(r) ((r)==0 -> MAXATT : ATT1)
#if NREQ==1
#define NJ MAXATT
#else
#define NJ (MAXATT+ATT1)
#endif
#define DI(d,j) ((d)*NJ+(j))
#define PE (CRP+1)
#define BIT(m,e) (((m)>>(e))&1)

/* router */
#define R_NEW 0
#define R_ACTIVE 1
#define R_ANSWERED 2
#define R_FAILED 3
byte rst[NREQ], rcur[NREQ], rnext[NREQ], seen[NREQ];
bit  rjoin[NREQ];               /* a message of D's own for this attempt was seen */
byte rdl[NREQ];                 /* 0, or 1 + the epoch of the D that P named with the first token */
byte base[NJ], jpe[NJ];         /* tokens so far when the attempt began; P epoch it was sent to */
/* P: none < parked < granted < run < computed < held < end */
#define P_NONE 0
#define P_PARKED 1
#define P_GRANTED 2
#define P_RUN 3
#define P_COMPUTED 4
#define P_HELD 5                /* KV gone over, block free; lease still renewed until D has the first token */
#define P_END 6
byte pst[NJ], pd[NJ], pn[NJ], pown, pep, pthr;
byte pcont[PE*LAYERS];
/* transfer ring and board: P's shared memory, outlives M */
#define T_NONE 0
#define T_PENDING 1
#define T_SENT 2
#define T_VOID 3                 /* cancelled, or taken back */
byte ring[NJ], prog[NJ];
/* D */
#define D_NONE 0
#define D_QUEUED 1
#define D_LEASED 2
#define D_QUAR 3                /* cancelled, a writer may still write */
#define D_RUN 4
#define D_TOMB 5
byte dst[ND*NJ], dw[ND*NJ], dn[ND], dbusy[ND], dcont[ND*LAYERS];
bit  dkv[ND*NJ], dft[ND*NJ];
bit  dop[ND*NJ];                /* a messager has opened this lease, whether or not it still lives */
/* M */
#define M_NONE 0
#define M_ASKED 1
#define M_OPEN 2
#define M_COPY 3
#define M_MARKED 4
#define M_POSTED 5
#define M_CLOSED 6
byte mst[NJ], msent[NJ], mbuf[NJ], mep;
bit  mstop;
bit  squat;                     /* M has mapped another process's memory for D's */
bit  zmb[NJ]; byte zbuf[NJ], zlay[NJ];
/* messages in flight (masks are by sender or addressee epoch) */
bit  sub[NJ], cxP[NJ], fai[NJ], fad[ND*NJ], ftr[NJ], djn[NJ], dtk[NJ], ftd[NJ], fta[NJ], kvr[NJ], kva[NJ], kvs[NJ], tfl[NJ];
bit  rsv[ND*NJ], cxD[ND*NJ], cxQ[ND*NJ];     /* cancel at D: by the router, by P */
byte grt[ND*NJ], lop[NJ], lok[NJ], lno[NJ], rvk[NJ], rak[NJ];
byte crashes;

#define PLIVE(j) (jpe[j]==pep)
#define MRUN     (!mstop)
#define FIRSTD(r) ((FULL0 && (r)==1) -> (ND-1) : 0)

inline cancel_all(j) {
    cxP[j] = 1; cxD[DI(0,j)] = 1;
    if :: ND > 1 -> cxD[DI(ND-1,j)] = 1 :: else fi
}
#define RQ(j) ((j)<MAXATT -> 0 : 1)
#define RWANTS(j) (rst[RQ(j)]==R_ACTIVE && rcur[RQ(j)]==j)
#define PWANTS(j) (PLIVE(j) && pst[j]<P_END)
#define DGONE(d,j) (dst[DI(d,j)]==D_TOMB || (dst[DI(d,j)]==D_NONE && !rsv[DI(d,j)]))
/* a job that has ended everywhere: forget what no longer matters, so that states which differ only in history are one */
inline norm(j) {
    if :: !PWANTS(j) && !RWANTS(j) && (mst[j]==M_NONE || mst[j]==M_CLOSED) && DGONE(0,j) && DGONE(ND-1,j) && !zmb[j] ->
            cxP[j]=0; fai[j]=0; fad[DI(0,j)]=0; fad[DI(ND-1,j)]=0; ftr[j]=0; djn[j]=0; dtk[j]=0; ftd[j]=0; fta[j]=0; kvr[j]=0; kva[j]=0; kvs[j]=0; tfl[j]=0;
            grt[DI(0,j)]=0; grt[DI(ND-1,j)]=0; lop[j]=0; lok[j]=0; lno[j]=0; rvk[j]=0; rak[j]=0; prog[j]=0; ring[j]=T_VOID;
            mst[j]=M_CLOSED; pst[j]=P_END;
#if !CRD
            rsv[DI(0,j)]=0; rsv[DI(ND-1,j)]=0; cxD[DI(0,j)]=0; cxD[DI(ND-1,j)]=0; cxQ[DI(0,j)]=0; cxQ[DI(ND-1,j)]=0; dst[DI(0,j)]=D_TOMB; dst[DI(ND-1,j)]=D_TOMB
#endif
       :: else
    fi
}
inline r_forget(j, r) { fai[j]=0; fad[DI(0,j)]=0; fad[DI(ND-1,j)]=0; ftr[j]=0; djn[j]=0; dtk[j]=0; rjoin[r]=0; rdl[r]=0 }   /* only merges equal states */
inline deliver(r, idx) {
    assert(rst[r] == R_ACTIVE);           /* nothing after the end */
    assert((idx) == seen[r]);             /* (d) no index twice, none skipped */
    seen[r]++; rnext[r]++;
    if :: rnext[r] >= NTOK -> rst[r] = R_ANSWERED; r_forget(rcur[r], r); norm(rcur[r]) :: else fi
}

/* what a D says of a lease it has dropped counts if that D is known to decode */
#if MUT==23
#define DSAYS(j, r) (fad[DI(0,j)] || fad[DI(ND-1,j)])      /* seeded: it counts whoever says it, and at once */
#else
#define DSAYS(j, r) (rdl[r]!=0 && fad[DI(pd[j],j)])
#endif
proctype router(byte r) {
end: do
  :: atomic { rst[r]==R_NEW && (r==0 || rst[r-1]!=R_NEW) -> rst[r]=R_ACTIVE; rcur[r]=r*MAXATT; jpe[r*MAXATT]=pep; sub[r*MAXATT]=1 }
#if MUT==7
  /* seeded: counts tokens, looks at neither attempt nor index */
  :: atomic { rst[r]==R_ACTIVE && ftr[r*MAXATT] -> ftr[r*MAXATT]=0; deliver(r, base[r*MAXATT]) }
  :: atomic { rst[r]==R_ACTIVE && djn[r*MAXATT] -> djn[r*MAXATT]=0; deliver(r, base[r*MAXATT]) }
#else
  :: atomic { rst[r]==R_ACTIVE && djn[rcur[r]] && !rjoin[r] -> rjoin[r]=1; rdl[r]=1+pn[rcur[r]];
        if :: rnext[r]==base[rcur[r]] -> deliver(r, base[rcur[r]]) :: else fi }
#ifdef S_NAME
  :: atomic { rst[r]==R_ACTIVE && ftr[rcur[r]] && rnext[r]==base[rcur[r]] -> deliver(r, base[rcur[r]]) }
#else
  :: atomic { rst[r]==R_ACTIVE && ftr[rcur[r]] && rdl[r]==0 -> rdl[r]=1+pn[rcur[r]];
        if :: rnext[r]==base[rcur[r]] -> deliver(r, base[rcur[r]]) :: else fi }
#endif
#endif
  :: atomic { rst[r]==R_ACTIVE && dtk[rcur[r]] && rnext[r]==base[rcur[r]]+1 -> deliver(r, base[rcur[r]]+1) }
#if MUT==24
  :: atomic { rst[r]==R_ACTIVE && rdl[r]==0 && fad[DI(pd[rcur[r]],rcur[r])] -> fad[DI(pd[rcur[r]],rcur[r])]=0 }   /* seeded: D's report is not kept until D is named */
#endif
  :: atomic { rst[r]==R_ACTIVE && ((fai[rcur[r]] && !rjoin[r]) || DSAYS(rcur[r], r) || (!PLIVE(rcur[r]) && !rjoin[r]) ||
        (rdl[r]!=0 && rdl[r]-1!=dn[pd[rcur[r]]])) ->
        cancel_all(rcur[r]); r_forget(rcur[r], r);
        if :: rcur[r]+1 < r*MAXATT+ATT(r) -> rcur[r]++; base[rcur[r]]=rnext[r]; jpe[rcur[r]]=pep; sub[rcur[r]]=1
           :: else -> rst[r]=R_FAILED
        fi }
#if CXL
  :: atomic { rst[r]==R_ACTIVE -> cancel_all(rcur[r]); r_forget(rcur[r], r); rst[r]=R_FAILED }
#endif
  od
}

inline p_drop(j) {                        /* P forgets the job; its block is free at once: readers are void by generation */
    if :: pown==j+1 -> pown=0 :: else fi;
    if :: pthr==j+1 -> pthr=0 :: else fi;
#if MUT!=8
    if :: ring[j]==T_PENDING -> ring[j]=T_VOID :: else fi;
#endif
    kvs[j]=0; tfl[j]=0; fta[j]=0; pst[j]=P_END
}

proctype prefill(byte j; byte r) {
end: do
#if MUT==11
  :: atomic { sub[j] && pst[j]==P_NONE && PLIVE(j) && !cxP[j] && pown==0 -> pown=j+1;       /* seeded: parked with blocks */
        pst[j]=P_PARKED; pd[j]=FIRSTD(r); rsv[DI(pd[j],j)]=1 }
#elif MUT==15
  :: atomic { sub[j] && pst[j]==P_NONE && PLIVE(j) && !cxP[j] && pthr==0 -> pthr=j+1;       /* seeded: parked with a thread */
        pst[j]=P_PARKED; pd[j]=FIRSTD(r); rsv[DI(pd[j],j)]=1 }
#else
  :: atomic { sub[j] && pst[j]==P_NONE && PLIVE(j) && !cxP[j] -> pst[j]=P_PARKED; pd[j]=FIRSTD(r); rsv[DI(pd[j],j)]=1 }
#endif
#if LATE
  :: atomic { pst[j]==P_PARKED && PLIVE(j) && pd[j]+1 < ND -> cxQ[DI(pd[j],j)]=1; pd[j]=pd[j]+1; rsv[DI(pd[j],j)]=1 }
#endif
  :: atomic { pst[j]==P_PARKED && PLIVE(j) && grt[DI(pd[j],j)]!=0 ->
        if :: BIT(grt[DI(pd[j],j)],0) -> pn[j]=0 :: BIT(grt[DI(pd[j],j)],1) -> pn[j]=1 :: BIT(grt[DI(pd[j],j)],2) -> pn[j]=2 fi;
        if :: pthr==j+1 -> pthr=0 :: else fi;
        pst[j]=P_GRANTED }
  :: atomic { pst[j]==P_GRANTED && PLIVE(j) && (pown==0 || pown==j+1) -> pown=j+1; ring[j]=T_PENDING; prog[j]=0; pst[j]=P_RUN }
  :: atomic { pst[j]==P_RUN && PLIVE(j) -> pcont[pep*LAYERS+prog[j]]=j+1; prog[j]++;
        if :: prog[j]==LAYERS -> pst[j]=P_COMPUTED; if :: RWANTS(j) -> ftr[j]=1 :: else fi;
                if :: base[j]+1==NTOK -> p_drop(j); cxQ[DI(pd[j],j)]=1      /* the first token ends the answer: lease returned */
                   :: else -> ftd[j]=1
                fi
           :: else fi }
#ifdef S_HOLD
  :: atomic { pst[j]==P_COMPUTED && PLIVE(j) && kvs[j] -> pown=0; ring[j]=T_VOID; kvs[j]=0; pst[j]=P_END; norm(j) }
#else
  :: atomic { pst[j]==P_COMPUTED && PLIVE(j) && kvs[j] -> pown=0; ring[j]=T_VOID; pst[j]=P_HELD }
  :: atomic { pst[j]==P_HELD && PLIVE(j) && fta[j] -> fta[j]=0; kvs[j]=0; pst[j]=P_END; norm(j) }
#endif
  :: atomic { pst[j]>=P_PARKED && pst[j]<P_END && PLIVE(j) &&
        (tfl[j] || (pst[j]>=P_GRANTED && pn[j]!=dn[pd[j]])) -> p_drop(j); cxQ[DI(pd[j],j)]=1; if :: RWANTS(j) -> fai[j]=1 :: else fi; norm(j) }
#if PSTALL
  :: atomic { (pst[j]==P_COMPUTED || pst[j]==P_HELD) && PLIVE(j) -> p_drop(j); cxQ[DI(pd[j],j)]=1; if :: RWANTS(j) -> fai[j]=1 :: else fi; norm(j) }
#endif
  :: atomic { cxP[j] && pst[j]<P_END && PLIVE(j) && pst[j]>P_NONE -> p_drop(j); cxQ[DI(pd[j],j)]=1; norm(j) }
  od
}

#define OURS (dcont[d*LAYERS]==j+1 && dcont[d*LAYERS+LAYERS-1]==j+1)
inline d_free(d, j) { dbusy[d]=0; dst[DI(d,j)]=D_TOMB; dw[DI(d,j)]=0; dkv[DI(d,j)]=0; dft[DI(d,j)]=0; dop[DI(d,j)]=0; if :: pd[j]==d -> rvk[j]=0; rak[j]=0 :: else fi; norm(j) }
inline d_drop(d, j) {                     /* cancel of a lease: fence first */
#if MUT==1
    d_free(d, j)                          /* seeded: the timer or the cancel frees the write target */
#else
    if :: dw[DI(d,j)]!=0 -> dst[DI(d,j)]=D_QUAR; rvk[j]=rvk[j]|(1<<(dw[DI(d,j)]-1))
       :: else -> d_free(d, j)
    fi
#endif
}
#define CXD (cxD[DI(d,j)] || cxQ[DI(d,j)])
#define RENEWED(j) (PLIVE(j) && pst[j]>=P_PARKED && pst[j]<P_END && pd[j]==d)

#if MUT==18
#define BOTH 0                            /* seeded: the lease clock goes on though D has all it needs */
#else
#define BOTH (dkv[DI(d,j)] && dft[DI(d,j)])
#endif

proctype decode(byte d; byte j) {
  byte e;
end: do
  :: atomic { rsv[DI(d,j)] && dst[DI(d,j)]==D_NONE -> dst[DI(d,j)]=D_QUEUED }
  :: atomic { dst[DI(d,j)]==D_QUEUED && dbusy[d]==0 && !(FULL0 && d==0) -> dbusy[d]=j+1; dst[DI(d,j)]=D_LEASED;
#ifdef S_ASK
        dw[DI(d,j)]=mep+1;                /* as written: the running messager writes unasked, so D must count it from the grant */
#endif
        if :: PWANTS(j) && pst[j]==P_PARKED -> grt[DI(d,j)]=grt[DI(d,j)]|(1<<dn[d]) :: else fi }
#if MUT==3 || MUT==21
  :: atomic { CXD && dst[DI(d,j)]==D_NONE -> cxD[DI(d,j)]=0; cxQ[DI(d,j)]=0 }                      /* seeded: no tombstone */
  :: atomic { CXD && dst[DI(d,j)]==D_QUEUED -> dst[DI(d,j)]=D_TOMB }
#else
  :: atomic { CXD && dst[DI(d,j)]<=D_QUEUED -> dst[DI(d,j)]=D_TOMB; norm(j) }
#endif
  :: atomic { dst[DI(d,j)]==D_LEASED && CXD -> d_drop(d, j) }
#if MUT!=16 && MUT!=21
#ifdef S_GONE
  :: atomic { dst[DI(d,j)]==D_LEASED && !CXD && !BOTH && (SPUR || !RENEWED(j)) -> d_drop(d, j) }
#else
  :: atomic { dst[DI(d,j)]==D_LEASED && !CXD && !BOTH && (SPUR || !RENEWED(j)) -> if :: RWANTS(j) -> fad[DI(d,j)]=1 :: else fi; d_drop(d, j) }
#endif
#endif
#if MUT==22
  :: atomic { dst[DI(d,j)]==D_RUN && CXD -> d_free(d, j) }         /* seeded: P's cancel ends a sequence that has joined */
#else
  :: atomic { dst[DI(d,j)]==D_RUN && cxD[DI(d,j)] -> d_free(d, j) }   /* from the join on only the router's word counts */
#endif
  /* a messager asks before it writes; messages of a messager older than the registered one are dropped */
#if MUT==14
#define OLD(e) 0                          /* seeded: an older messager's question is answered too */
#else
#define OLD(e) ((e)+1 < dw[DI(d,j)])
#endif
#if MUT==26
#define ATTACHED 1                        /* seeded: whether or not D has handed its memory to that messager */
#else
#define ATTACHED (!squat)
#endif
#if MUT==25
#define COUNTS 1                          /* seeded: also if no messager has opened the lease */
#else
#define COUNTS dop[DI(d,j)]
#endif
#define ASKS(e) (BIT(lop[j],e) && !BIT(lok[j],e) && !BIT(lno[j],e) && !OLD(e))
  :: atomic { pd[j]==d && (ASKS(0) || ASKS(1) || ASKS(2)) ->
        if :: ASKS(0) -> e=0 :: ASKS(1) -> e=1 :: ASKS(2) -> e=2 fi;
#if MUT==2 || MUT==20
        if :: dst[DI(d,j)]==D_LEASED && pn[j]==dn[d] && ATTACHED ->
#else
        if :: dst[DI(d,j)]==D_LEASED && pn[j]==dn[d] && !dkv[DI(d,j)] && ATTACHED ->
#endif
                  dw[DI(d,j)]=e+1; dop[DI(d,j)]=1; lok[j]=lok[j]|(1<<e)
           :: else -> lno[j]=lno[j]|(1<<e)
        fi; e=0 }
  /* fence: the registered writer said so, or it is dead (end of file and pidfd) */
#if MUT==6
  :: atomic { dst[DI(d,j)]==D_QUAR && (BIT(rak[j],dw[DI(d,j)]-1) || mep>0) -> d_free(d, j) }   /* seeded: any messager's end counts */
#else
  :: atomic { dst[DI(d,j)]==D_QUAR && (BIT(rak[j],dw[DI(d,j)]-1) || dw[DI(d,j)]-1<mep) -> d_free(d, j) }
#endif
  :: atomic { dst[DI(d,j)]==D_LEASED && dw[DI(d,j)]!=0 && dw[DI(d,j)]-1<mep -> dw[DI(d,j)]=0 }
#if MUT==12
  :: atomic { kvr[j] && pd[j]==d && ((!kva[j] && mst[j]==M_POSTED) || (dst[DI(d,j)]==D_LEASED && !dkv[DI(d,j)])) -> kva[j]=1;  /* seeded: KvReady and first token carry no lease epoch */
        if :: dst[DI(d,j)]==D_LEASED -> dkv[DI(d,j)]=1 :: else fi }
#else
  :: atomic { kvr[j] && pd[j]==d && pn[j]==dn[d] && ((!kva[j] && mst[j]==M_POSTED) || (dst[DI(d,j)]==D_LEASED && !dkv[DI(d,j)] && COUNTS)) -> kva[j]=1;
        if :: dst[DI(d,j)]==D_LEASED && COUNTS -> dkv[DI(d,j)]=1 :: else fi }
#endif
#if FORGE                               /* it comes in the link's order: before that messager's LEASE_OPEN, if it sends one */
  :: atomic { dst[DI(d,j)]==D_LEASED && !dkv[DI(d,j)] && !dop[DI(d,j)] && COUNTS -> dkv[DI(d,j)]=1 }
#endif
#if MUT==12
  :: atomic { ftd[j] && pd[j]==d && dst[DI(d,j)]==D_LEASED && !dft[DI(d,j)] -> fta[j]=1; dft[DI(d,j)]=1 }
#endif
  :: atomic { ftd[j] && pd[j]==d && pn[j]==dn[d] && ((!fta[j] && PWANTS(j)) || (dst[DI(d,j)]==D_LEASED && !dft[DI(d,j)])) -> fta[j]=1;
        if :: dst[DI(d,j)]==D_LEASED -> dft[DI(d,j)]=1 :: else fi }
#if MUT==10
  :: atomic { dst[DI(d,j)]==D_LEASED && dft[DI(d,j)] ->                                     /* seeded: joins on the first token */
#else
  :: atomic { dst[DI(d,j)]==D_LEASED && dkv[DI(d,j)] && dft[DI(d,j)] ->
#endif
        assert(OURS);       /* (b) complete, own request, own attempt */
        dst[DI(d,j)]=D_RUN; if :: RWANTS(j) -> djn[j]=1 :: else fi }
  :: atomic { dst[DI(d,j)]==D_RUN -> assert(OURS); if :: RWANTS(j) -> dtk[j]=1 :: else fi; d_free(d, j) }
  od
}

inline m_write(d, j, lay, buf) {
    if :: pn[j]==dn[d] && !squat ->       /* else D's old memory is mapped: nobody reads it; or another process's */
            assert(dbusy[d]==j+1);        /* (a) never into a block that another owner has */
            assert(dst[DI(d,j)]==D_LEASED || dst[DI(d,j)]==D_QUAR);
            dcont[d*LAYERS+lay]=buf
       :: else fi
}

inline m_close(j) { mst[j]=M_CLOSED; msent[j]=0; lok[j]=0; lno[j]=0; kva[j]=0; norm(j) }

proctype messager(byte j) {
end: do
#ifdef S_ASK
  :: atomic { MRUN && mst[j]==M_NONE && ring[j]==T_PENDING && PLIVE(j) ->
        if :: mep==0 -> mst[j]=M_OPEN :: else -> mst[j]=M_ASKED; lop[j]=lop[j]|(1<<mep) fi }
#elif MUT==4
  :: atomic { MRUN && mst[j]==M_NONE && ring[j]==T_PENDING && PLIVE(j) ->                   /* seeded: a restarted one goes on unasked */
        if :: mep>0 -> mst[j]=M_OPEN :: else -> mst[j]=M_ASKED; lop[j]=lop[j]|(1<<mep) fi }
#else
  :: atomic { MRUN && mst[j]==M_NONE && ring[j]==T_PENDING && PLIVE(j) -> mst[j]=M_ASKED; lop[j]=lop[j]|(1<<mep) }
#endif
  :: atomic { MRUN && mst[j]==M_NONE && ring[j]==T_SENT && PLIVE(j) -> mst[j]=M_MARKED; msent[j]=LAYERS }
  :: atomic { MRUN && mst[j]==M_ASKED && BIT(lok[j],mep) -> mst[j]=M_OPEN }
  :: atomic { MRUN && mst[j]==M_ASKED && BIT(lno[j],mep) -> m_close(j); if :: PWANTS(j) -> tfl[j]=1 :: else fi }
  :: atomic { MRUN && mst[j]==M_OPEN && msent[j]<prog[j] -> mbuf[j]=pcont[jpe[j]*LAYERS+msent[j]]; mst[j]=M_COPY }
  :: atomic { MRUN && mst[j]==M_COPY -> m_write(pd[j], j, msent[j], mbuf[j]); mbuf[j]=0; msent[j]++; mst[j]=M_OPEN }
#if MUT==2 || MUT==19
  :: atomic { MRUN && mst[j]==M_OPEN && msent[j]==LAYERS && ring[j]==T_PENDING && !kvr[j] -> kvr[j]=1 }  /* seeded: KvReady first */
  :: atomic { MRUN && mst[j]==M_OPEN && msent[j]==LAYERS && ring[j]==T_PENDING && kvr[j] -> ring[j]=T_SENT; mst[j]=M_MARKED }
#else
  :: atomic { MRUN && mst[j]==M_OPEN && msent[j]==LAYERS && ring[j]==T_PENDING -> ring[j]=T_SENT; mst[j]=M_MARKED }
#endif
  :: atomic { MRUN && (mst[j]==M_OPEN || mst[j]==M_ASKED) && ring[j]==T_VOID -> m_close(j) }
#ifdef S_SENT
  :: atomic { MRUN && mst[j]==M_MARKED -> kvr[j]=1; kvs[j]=1; m_close(j) }             /* as written: both posted at once */
#else
  :: atomic { MRUN && mst[j]==M_MARKED -> kvr[j]=1; mst[j]=M_POSTED }
  :: atomic { MRUN && mst[j]==M_POSTED && kva[j] -> kvs[j]=1; m_close(j) }
#endif
#if MUT==5
  :: atomic { MRUN && BIT(rvk[j],mep) && !BIT(rak[j],mep) -> rak[j]=rak[j]|(1<<mep);        /* seeded: acknowledged with a copy in flight */
        if :: mst[j]==M_OPEN || mst[j]==M_ASKED -> m_close(j); if :: PWANTS(j) -> tfl[j]=1 :: else fi :: else fi }
#elif MUT==17
  :: atomic { MRUN && BIT(rvk[j],mep) && !BIT(rak[j],mep) && mst[j]!=M_COPY && mst[j]!=M_OPEN ->     /* seeded: a cancel that overtakes */
        rak[j]=rak[j]|(1<<mep) }                                                            /* the confirmation is not remembered */
  :: atomic { MRUN && BIT(rvk[j],mep) && !BIT(rak[j],mep) && mst[j]==M_OPEN -> rak[j]=rak[j]|(1<<mep); m_close(j); if :: PWANTS(j) -> tfl[j]=1 :: else fi }
#else
  :: atomic { MRUN && BIT(rvk[j],mep) && !BIT(rak[j],mep) && mst[j]!=M_COPY -> rak[j]=rak[j]|(1<<mep);
        if :: mst[j]==M_OPEN || mst[j]==M_ASKED || mst[j]==M_MARKED || mst[j]==M_POSTED -> m_close(j); if :: PWANTS(j) -> tfl[j]=1 :: else fi :: else fi }
#endif
  :: atomic { MRUN && !PLIVE(j) && (mst[j]==M_ASKED || mst[j]==M_OPEN) -> m_close(j) }
  :: atomic { MRUN && pn[j]!=dn[pd[j]] && (mst[j]==M_ASKED || mst[j]==M_OPEN || mst[j]==M_MARKED || mst[j]==M_POSTED) ->
        m_close(j); if :: PWANTS(j) -> tfl[j]=1 :: else fi }
#if STALL
  :: atomic { MRUN && (mst[j]==M_ASKED || mst[j]==M_OPEN) -> m_close(j); if :: PWANTS(j) -> tfl[j]=1 :: else fi }
#endif
#if MUT==13
  :: atomic { zmb[j] -> zmb[j]=0; m_write(pd[j], j, zlay[j], zbuf[j]) }                      /* seeded: the old one was not dead */
#endif
  od
}

#define EACH(v) for (v : 0 .. NJ-1)
/* P's link to decode worker 0 restarts: neither has what the other said, each gives up what was between them. D says nothing of a reservation that waits */
inline d_link(j) {
    if :: dst[DI(0,j)]==D_QUEUED -> dst[DI(0,j)]=D_TOMB;
#if MUT==23
          if :: RWANTS(j) -> fad[DI(0,j)]=1 :: else fi      /* seeded: it does */
#endif
       :: dst[DI(0,j)]==D_LEASED -> if :: RWANTS(j) -> fad[DI(0,j)]=1 :: else fi; d_drop(0, j)
       :: else fi
}
inline p_link(j) {
    if :: PWANTS(j) && pd[j]==0 && pst[j]==P_PARKED && ND>1 -> pd[j]=ND-1; rsv[DI(ND-1,j)]=1
       :: PWANTS(j) && pd[j]==0 && pst[j]!=P_NONE && (pst[j]!=P_PARKED || ND==1) -> p_drop(j); if :: RWANTS(j) -> fai[j]=1 :: else fi
       :: else fi
}
proctype env() {
  byte j, l;
#if LINK
  bit linked = 1;
#endif
end: do
#if CRM
  :: atomic { mep<CRM && crashes<CRALL && !mstop -> crashes++; mep++;
#if SQUAT
        if :: squat=1 :: squat=0 fi;
#endif
        EACH(j) {
#if MUT==13
          if :: mst[j]==M_COPY -> zmb[j]=1; zbuf[j]=mbuf[j]; zlay[j]=msent[j] :: else fi;
#endif
          mst[j]=M_NONE; msent[j]=0; mbuf[j]=0 };
        if :: EACH(j) { kvr[j]=0 } :: skip fi;
        if :: EACH(j) { kvs[j]=0; tfl[j]=0 } :: skip fi;
        j=0 }
#endif
#if CRP
  :: atomic { pep<CRP && crashes<CRALL -> crashes++; pep++; pown=0; pthr=0;
        if :: EACH(j) { rsv[DI(0,j)]=0; rsv[DI(ND-1,j)]=0; cxQ[DI(0,j)]=0; cxQ[DI(ND-1,j)]=0; ftd[j]=0 } :: skip fi;
        if :: EACH(j) { ftr[j]=0; fai[j]=0 } :: skip fi;
        j=0 }
#endif
#if CRD
  :: atomic { dn[0]<CRD && crashes<CRALL -> crashes++; dn[0]++; dbusy[0]=0;
        for (l : 0 .. LAYERS-1) { dcont[l]=0 };
        EACH(j) { dst[DI(0,j)]=0; dw[DI(0,j)]=0; dkv[DI(0,j)]=0; dft[DI(0,j)]=0; dop[DI(0,j)]=0 };
        if :: EACH(j) { if :: pst[j]!=P_PARKED || !PLIVE(j) -> rsv[DI(0,j)]=0 :: else fi } :: skip fi;
        if :: EACH(j) { grt[DI(0,j)]=0; lok[j]=0; lno[j]=0; rvk[j]=0 } :: skip fi;
        if :: EACH(j) { djn[j]=0; dtk[j]=0; fad[DI(0,j)]=0 } :: skip fi;
        j=0; l=0 }
#endif
#if LINK
  :: atomic { linked && (LINK==2 || pst[0]==P_PARKED) -> linked=0;
        EACH(j) { if :: pd[j]==0 -> rsv[DI(0,j)]=0; cxQ[DI(0,j)]=0; grt[DI(0,j)]=0; ftd[j]=0; fta[j]=0 :: else fi; d_link(j); p_link(j); norm(j) };
        j=0 }
#endif
#if STOPM
  :: atomic { !mstop -> mstop=1 }
#endif
  :: false
  od
}

/* quiescence: nothing can move any more */
proctype monitor() {
  byte j, d;
  timeout -> atomic {
#if !FULL0
    for (j : 0 .. NREQ-1) {
#if NEEDANS
      assert(rst[j]==R_ANSWERED || (ATT(j)==1 && MAXATT>1));                                     /* (e) strong: answered */
#else
      assert(rst[j]>=R_ANSWERED);                                     /* (e) ended */
#endif
    };
#else
    assert(rst[1]==R_ANSWERED);                                       /* (f) */
#endif
#if !STOPM && !FULL0
    assert(pown==0);                                                  /* (c) */
    for (j : 0 .. NJ-1) {
      assert(!PLIVE(j) || pst[j]==P_NONE || pst[j]==P_END);
      assert(mst[j]==M_NONE || mst[j]==M_CLOSED);
      for (d : 0 .. ND-1) { assert(dst[DI(d,j)]==D_NONE || dst[DI(d,j)]==D_TOMB) }
    };
    for (d : 0 .. ND-1) { assert(dbusy[d]==0) }
#endif
  }
}

init {
  byte i, k;
  atomic {
#if SQUAT
    if :: squat=1 :: squat=0 fi;
#endif
    for (i : 0 .. NREQ-1) { run router(i) };
    for (i : 0 .. NJ-1) { run prefill(i, (i<MAXATT -> 0 : 1)); run messager(i); for (k : 0 .. ND-1) { run decode(k, i) } };
#if CRP || CRD || CRM || STOPM || LINK
    run env();
#endif
    run monitor(); i=0; k=0
  }
}
