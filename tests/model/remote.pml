/* remote.pml: hand-over to a decode worker of another host.
 *
 * P and its messager A on one host, D and its messager B on the other. NJ jobs (attempts) use one block of P and one block of D of LAYERS
 * pieces, so each conflict is a reuse. B is D's registered writer. A asks B for a lease, gets a handle, and sends one frame a piece; B (TCP) or
 * B's network card (RDMA) places it.
 *
 * Frames are a set: up to two copies of each, in any order, at any later time, also from a connection that A has given up.
 * A frame's contents are those of P's block when it is placed (a zero-copy send, or a read by the network card): worse than a copy.
 * TCP: a frame arrives in two parts, one after the other written into D's block, on any of two connections; B runs between any two parts.
 * RDMA: a frame is placed while its key is valid, without B; a key ends at an unknown time after B has ended it.
 * Control messages of A and B belong to the link on which they were sent. Each of the two may notice the end of a link later than the other, or
 * be wrong about it; a new link ends the old one at both. Messages of D, P and the router are a set as in handover.pml.
 * The grant, P's computation and the first token are one step each (handover.pml has the details).
 * Default = the protocol. MUT=n = a seeded bug (README.md). */
#ifndef RDMA                    /* 1: one-sided writes; 0: TCP */
#define RDMA 0
#endif
#ifndef ATT2                    /* 1: job 1 is the second attempt of job 0's request; 0: another request */
#define ATT2 0
#endif
#ifndef MUT
#define MUT 0
#endif
#ifndef CRA                     /* crashes allowed of A, B, P, D, and of all together */
#define CRA 0
#endif
#ifndef CRB
#define CRB 0
#endif
#ifndef CRP
#define CRP 0
#endif
#ifndef CRD
#define CRD 0
#endif
#ifndef CRALL
#define CRALL 9
#endif
#ifndef PART                    /* partitions between A and B; each one heals */
#define PART 0
#endif
#ifndef DROP                    /* how often A or B takes a link for dead, in a partition only; with WRONG at any time */
#define DROP PART
#endif
#ifndef WRONG
#define WRONG 0
#endif
#ifndef CUT                     /* data connections, or queue pairs, cut */
#define CUT 0
#endif
#ifndef LINKD                   /* restarts of the link between B and D */
#define LINKD 0
#endif
#ifndef CXL                     /* 1: P may give a job up at any time; its cancel takes any time to reach D */
#define CXL 0
#endif
#ifndef SPUR                    /* 1: a lease may expire though P renews it */
#define SPUR 0
#endif
#ifndef COR                     /* frames damaged on their way (TCP) */
#define COR 0
#endif
#ifndef AGAIN                   /* what A does with its transfers when the link to B ends: 0: they fail; 1: it asks again on the next link */
#define AGAIN 0
#endif
#ifndef GEN                     /* 1: B looks at the block's generation when a frame starts */
#define GEN 0
#endif
#ifndef OLDACK                  /* 1: A takes completions of a queue pair after it has posted again over the next one (RDMA) */
#define OLDACK 0
#endif
#ifndef FORGE                   /* 1: another messager than A may post KV_READY of any lease that B does not know */
#define FORGE 0
#endif
#ifndef NOCHECK                 /* 1: B passes KV_READY on for a lease that it knows and that is not complete */
#define NOCHECK 0
#endif
#ifndef NEEDANS                 /* 1: at quiescence each request must have been answered, not only ended */
#define NEEDANS 0
#endif
#ifndef LAYERS
#define LAYERS 2
#endif

#define NJ 2
#define NH 3                    /* handles of one job at a time; a number is taken again when nothing names it any more */
#define NC 2                    /* data connections */
#define NF (NJ*NH*LAYERS)
#define F(j,k,i) (((j)*NH+(k))*LAYERS+(i))
#define FJ(f) ((f)/(NH*LAYERS))
#define FK(f) (((f)/LAYERS)%NH)
#define FI(f) ((f)%LAYERS)
#define ALL ((1<<LAYERS)-1)
#define BIT(m,e) (((m)>>(e))&1)
#define PE (CRP+1)
#define FOREIGN 9
#define DAMAGED 8

/* router */
bit  rdone[NJ], rfail[NJ];       /* of request j, or with ATT2 of request 0: answered, failed */
bit  cur1;                      /* ATT2: job 1 is the current attempt */
/* P */
#define P_NONE 0
#define P_GRANTED 1
#define P_RUN 2
#define P_END 3
byte pst[NJ], jpe[NJ], pn[NJ], pown, pep, pcont[PE];
#define T_NONE 0
#define T_PENDING 1
#define T_SENT 2
#define T_VOID 3
byte ring[NJ];
/* A */
#define A_NONE 0
#define A_ASKED 1
#define A_OPEN 2
#define A_MARKED 3
#define A_POSTED 4
#define A_CLOSED 5
byte ast[NJ], ah[NJ], asent[NJ], agot[NJ];    /* ah: the handle + 1; sent, acknowledged: one bit a piece */
bit  aup, bup, cut;
/* B */
bit  basked[NJ], brev[NJ], bpost[NJ];         /* waits for LEASE_OPENED; revoked; waits for KV_READY_ACK */
byte bopen[NJ], bend[NJ], bgot[NJ], bep;      /* handles that are open, that are being closed; pieces written */
byte rc[NC]; bit rcx[NC];                     /* the frame + 1 that a connection is in the middle of; damaged */
/* D */
#define D_NONE 0
#define D_LEASED 1
#define D_QUAR 2
#define D_RUN 3
#define D_END 4
byte dst[NJ], dw[NJ], dbusy, dn, dcont[LAYERS*2];
bit  dop[NJ];                   /* B, or an earlier process of it, has opened this lease for A */
/* frames and acknowledgements in flight, by handle */
byte fr[NF], ack[NJ*NH];
/* messages: A to B, B to A (of the link that is up), B and D, workers */
bit  mlo[NJ], mkr[NJ], mno[NJ], mrv[NJ], mka[NJ];
byte mop[NJ];
byte lop[NJ], lok[NJ], lno[NJ], rvk[NJ], rak[NJ];   /* by epoch of B */
bit  kvr[NJ], kva[NJ];
bit  kvs[NJ], tfl[NJ], cxq[NJ], cxr[NJ], cxp[NJ], pfail[NJ], fad[NJ];
byte crashes, drops;
#if COR
byte damaged;
#endif
#if MUT==13
byte acks[NJ];
#endif
#if MUT==5
bit  late[NJ];
#endif
#if MUT==14
byte lost[NJ];
#endif

#define PLIVE(j) (jpe[j]==pep)
#define SYNC     (aup && bup)
#if ATT2
#define WANTS(j) (!rdone[0] && !rfail[0] && cur1==(j))
#else
#define WANTS(j) (!rdone[j] && !rfail[j])
#endif
#if ATT2
#define R(j) 0
#else
#define R(j) (j)
#endif
#define BIDLE(j) (bopen[j]==0 && bend[j]==0)
#define JOINED(j) (dst[j]==D_RUN && pn[j]==dn)

/* a job that has ended everywhere: forget what no longer matters */
inline norm(j) {
#if MUT==0
    if :: pst[j]==P_END && !WANTS(j) && (ast[j]==A_NONE || ast[j]==A_CLOSED) && (dst[j]==D_END || dst[j]==D_NONE) && BIDLE(j) ->
            ast[j]=A_CLOSED; dst[j]=D_END; ring[j]=T_VOID; jpe[j]=pep; pn[j]=dn; basked[j]=0; brev[j]=0; bpost[j]=0;
            mlo[j]=0; mkr[j]=0; mno[j]=0; mrv[j]=0; mka[j]=0; mop[j]=0; lop[j]=0; lok[j]=0; lno[j]=0; rvk[j]=0; rak[j]=0; kvr[j]=0; kva[j]=0;
            kvs[j]=0; tfl[j]=0; cxq[j]=0; cxr[j]=0; cxp[j]=0; pfail[j]=0; fad[j]=0
       :: else
    fi
#else
    skip
#endif
}

/* --- router and P ---- */
inline p_drop(j) {              /* its block is free at once, and anybody's */
    if :: pown==j+1 -> pown=0; pcont[pep]=FOREIGN :: else fi;
    if :: ring[j]==T_PENDING || ring[j]==T_SENT -> ring[j]=T_VOID :: else fi;
    kvs[j]=0; tfl[j]=0; pst[j]=P_END
}
proctype prefill(byte j) {
end: do
  :: atomic { pst[j]==P_GRANTED && PLIVE(j) && pown==0 && pn[j]==dn -> pown=j+1; pcont[pep]=j+1; ring[j]=T_PENDING; pst[j]=P_RUN }
  :: atomic { pst[j]==P_RUN && PLIVE(j) && kvs[j] -> p_drop(j); norm(j) }
  :: atomic { pst[j]!=P_END && pst[j]!=P_NONE && PLIVE(j) && (tfl[j] || pn[j]!=dn) -> p_drop(j); cxq[j]=1; if :: WANTS(j) -> pfail[j]=1 :: else fi; norm(j) }
#if CXL
  :: atomic { pst[j]!=P_END && pst[j]!=P_NONE && PLIVE(j) -> p_drop(j); cxq[j]=1; if :: WANTS(j) -> pfail[j]=1 :: else fi; norm(j) }
#endif
  :: atomic { cxp[j] && pst[j]!=P_END && PLIVE(j) -> p_drop(j); norm(j) }
  /* the router: P's failure counts until D has joined */
  :: atomic { WANTS(j) && pst[j]!=P_NONE && dst[j]!=D_RUN && (pfail[j] || fad[j] || !PLIVE(j) || pn[j]!=dn) ->
        cxp[j]=1; cxr[j]=1; pfail[j]=0; fad[j]=0;
#if ATT2
        if :: cur1==0 -> cur1=1 :: else -> rfail[0]=1 fi;
#else
        rfail[j]=1;
#endif
        norm(j) }
  od
}

/* --- D ---- */
#if COR
#define HALF (LAYERS*2-1)
#else
#define HALF (LAYERS-1)
#endif
inline ours(j) {                /* (b) complete, own request, own attempt */
    assert(dcont[0]==j+1 && dcont[LAYERS-1]==j+1);
#if COR
    assert(dcont[LAYERS]==j+1 && dcont[HALF]==j+1)
#endif
}
inline d_free(j) { dbusy=0; dst[j]=D_END; dw[j]=0; dop[j]=0; norm(j) }
inline d_drop(j) {
#if MUT==9
    d_free(j)                   /* seeded: no quarantine */
#else
    if :: dw[j]!=0 -> dst[j]=D_QUAR; rvk[j]=rvk[j]|(1<<(dw[j]-1)) :: else -> d_free(j) fi
#endif
}
#define ASKS(e) (BIT(lop[j],e) && !BIT(lok[j],e) && !BIT(lno[j],e) && (e)+1>=dw[j])
proctype decode(byte j) {
  byte e;
end: do
  :: atomic { WANTS(j) && pst[j]==P_NONE && dst[j]==D_NONE && dbusy==0 -> dbusy=j+1; dst[j]=D_LEASED; pst[j]=P_GRANTED; jpe[j]=pep; pn[j]=dn;
        for (e : 0 .. LAYERS*2-1) { dcont[e]=0 }; e=0 }
  :: atomic { dst[j]==D_LEASED && (cxq[j] || cxr[j]) -> d_drop(j) }
  :: atomic { dst[j]==D_LEASED && !cxq[j] && !cxr[j] && (SPUR || !PLIVE(j) || pst[j]==P_END) -> if :: WANTS(j) -> fad[j]=1 :: else fi; d_drop(j) }
  :: atomic { dst[j]==D_RUN && cxr[j] -> d_free(j) }
  :: atomic { ASKS(0) || ASKS(1) || ASKS(2) ->
        if :: ASKS(0) -> e=0 :: ASKS(1) -> e=1 :: ASKS(2) -> e=2 fi;
        if :: dst[j]==D_LEASED && pn[j]==dn -> dw[j]=e+1; dop[j]=1; lok[j]=lok[j]|(1<<e) :: else -> lno[j]=lno[j]|(1<<e) fi; e=0 }
#if MUT==1
  :: atomic { dst[j]==D_QUAR && (BIT(rak[j],dw[j]-1) || dw[j]-1<bep || cut) -> d_free(j) }    /* seeded: the other host counts as dead, nothing is closed */
#else
  :: atomic { dst[j]==D_QUAR && (BIT(rak[j],dw[j]-1) || dw[j]-1<bep) -> d_free(j) }
#endif
  :: atomic { dst[j]==D_LEASED && dw[j]!=0 && dw[j]-1<bep -> dw[j]=0 }
  :: atomic { kvr[j] && pn[j]==dn && ((dst[j]==D_LEASED && dop[j]) || (!kva[j] && bpost[j])) -> kva[j]=1;
        if :: dst[j]==D_LEASED && dop[j] -> ours(j); dst[j]=D_RUN; dw[j]=0; dop[j]=0 :: else fi }
#if FORGE && (MUT==34 || MUT==35)       /* it comes in the link's order: before the LEASE_OPEN that B sends afterwards */
#if MUT==34
  :: atomic { dst[j]==D_LEASED && pn[j]==dn && BIDLE(j) && !basked[j] && !dop[j] -> ours(j) }     /* seeded: counts though nobody has opened the lease */
#else
  :: atomic { dst[j]==D_LEASED && pn[j]==dn && BIDLE(j) && !basked[j] && dop[j] -> ours(j) }      /* seeded: counts though it is another messager's than P's */
#endif
#endif
  :: atomic { dst[j]==D_RUN -> ours(j); if :: WANTS(j) -> rdone[R(j)]=1 :: else fi; d_free(j) }
  od
}

/* --- placing bytes ---- */
inline place(j, at, v) {
    if :: pn[j]==dn ->                  /* else D's old memory: nobody reads it */
            assert(dbusy==j+1);         /* (a) never into a block that another owner has */
            assert(dst[j]==D_LEASED || dst[j]==D_QUAR);     /* (a,b) nor after the join */
            dcont[at]=v
       :: else
    fi
}
inline forget(j) {                      /* frames of a closed handle would be dropped */
    fr[F(j,0,0)]=0; fr[F(j,1,0)]=0; fr[F(j,2,0)]=0;
#if MUT!=12
    ack[j*NH]=0; ack[j*NH+1]=0; ack[j*NH+2]=0;
#endif
#if LAYERS==2
    fr[F(j,0,1)]=0; fr[F(j,1,1)]=0; fr[F(j,2,1)]=0;
#endif
    if :: rc[0]!=0 && FJ(rc[0]-1)==j -> rc[0]=0; rcx[0]=0 :: else fi;
    if :: rc[1]!=0 && FJ(rc[1]-1)==j -> rc[1]=0; rcx[1]=0 :: else fi
}
inline b_close(j) {
#if RDMA
    bend[j]=bend[j]|bopen[j]; bopen[j]=0    /* until it has ended, frames are still placed */
#else
    bopen[j]=0; bgot[j]=0;
#if MUT!=3 && MUT!=10 && MUT!=11 && MUT!=14
    forget(j)
#endif
#endif
}
#if MUT==3
#define OPENED(j,k) (pn[j]==dn && dst[j]!=D_NONE)         /* seeded: frames of closed handles are written */
#elif MUT==14
#define OPENED(j,k) (BIT(bopen[j],k) || BIT(lost[j],k))
#elif MUT==2 && !RDMA
#define OPENED(j,k) (BIT(bopen[j],k) || BIT(bend[j],k))
#else
#define OPENED(j,k) BIT(bopen[j],k)
#endif
#define VAL(j) pcont[jpe[j]]
/* a copy of a piece that is written already, or that another connection is in the middle of */
#if MUT==19 || MUT==31
#define HAS(j,i) 0                            /* seeded: written again */
#else
#define HAS(j,i) BIT(bgot[j],i)
#endif
#if GEN
#define FRESH(j) (pn[j]==dn && dbusy==j+1)
#else
#define FRESH(j) 1
#endif

#if RDMA
inline land(f) {
    if :: BIT(bopen[FJ(f)]|bend[FJ(f)],FK(f)) ->
            place(FJ(f), FI(f), VAL(FJ(f))); ack[FJ(f)*NH+FK(f)]=ack[FJ(f)*NH+FK(f)]|(1<<FI(f))
#if MUT==22
       :: bopen[FJ(f)]==0 && bend[FJ(f)]==0 && dst[FJ(f)]!=D_NONE -> place(FJ(f), FI(f), VAL(FJ(f)))
#endif
       :: else
    fi;
    fr[f]--
}
proctype card(byte f) {
end: do
  :: atomic { fr[f]>0 -> land(f) }
  od
}
#else
/* a frame starts on connection c */
inline begin(c, f) {
    fr[f]--;
    if
#if MUT==10 || MUT==11
    :: !OPENED(FJ(f),FK(f)) && OPENED(1-FJ(f),FK(f)) && !HAS(1-FJ(f),FI(f)) ->       /* seeded: the number means another lease now */
            place(1-FJ(f), FI(f), FJ(f)+1); bgot[1-FJ(f)]=bgot[1-FJ(f)]|(1<<FI(f)); ack[(1-FJ(f))*NH+FK(f)]=ack[(1-FJ(f))*NH+FK(f)]|(1<<FI(f))
#endif
    :: OPENED(FJ(f),FK(f)) && FRESH(FJ(f)) && HAS(FJ(f),FI(f)) ->
#if MUT!=28
            ack[FJ(f)*NH+FK(f)]=ack[FJ(f)*NH+FK(f)]|(1<<FI(f));            /* the first acknowledgement may be lost */
#if MUT==13
            acks[FJ(f)]++
#endif
#else
            skip
#endif
    :: OPENED(FJ(f),FK(f)) && FRESH(FJ(f)) && !HAS(FJ(f),FI(f)) ->
#if MUT!=21
            if :: rc[1-c]!=0 && FJ(rc[1-c]-1)==FJ(f) && FI(rc[1-c]-1)==FI(f) ->
#if MUT==29
                    ack[FJ(f)*NH+FK(f)]=ack[FJ(f)*NH+FK(f)]|(1<<FI(f));        /* seeded: the copy that is dropped is acknowledged */
#endif
                    rc[1-c]=0; rcx[1-c]=0 :: else fi;   /* the newer copy counts */
#endif
            rc[c]=f+1;
#if MUT==27
            ack[FJ(f)*NH+FK(f)]=ack[FJ(f)*NH+FK(f)]|(1<<FI(f)); bgot[FJ(f)]=bgot[FJ(f)]|(1<<FI(f));        /* seeded: acknowledged before it is written */
#endif
#if COR
            if :: damaged<COR -> damaged++; rcx[c]=1 :: skip fi;
            place(FJ(f), FI(f), (rcx[c] -> DAMAGED : VAL(FJ(f))))
#endif
    :: else -> skip
    fi
}
/* its last part: written, verified, acknowledged */
inline finish(c, f) {
    if
#if MUT==27
    :: OPENED(FJ(f),FK(f)) -> place(FJ(f), FI(f), VAL(FJ(f)))
#else
    :: OPENED(FJ(f),FK(f)) && !HAS(FJ(f),FI(f)) ->
            place(FJ(f), (COR -> LAYERS+FI(f) : FI(f)), (rcx[c] -> DAMAGED : VAL(FJ(f))));
            if :: rcx[c] -> if :: ah[FJ(f)]==FK(f)+1 -> asent[FJ(f)]=agot[FJ(f)] :: else fi              /* the connection is cut, A sends again */
               :: !rcx[c] -> bgot[FJ(f)]=bgot[FJ(f)]|(1<<FI(f)); ack[FJ(f)*NH+FK(f)]=ack[FJ(f)*NH+FK(f)]|(1<<FI(f));
#if MUT==13
                   acks[FJ(f)]++
#endif
            fi
#endif
    :: else -> skip
    fi;
    rc[c]=0; rcx[c]=0
}
proctype wire(byte f) {
end: do
  :: atomic { fr[f]>0 && rc[0]==0 -> begin(0, f) }
  :: atomic { fr[f]>0 && rc[0]!=0 && rc[1]==0 -> begin(1, f) }
  od
}
proctype receive(byte c) {
end: do
  :: atomic { rc[c]!=0 -> finish(c, rc[c]-1) }
  od
}
#endif

/* --- A ---- */
inline a_close(j) { ast[j]=A_CLOSED; ah[j]=0; asent[j]=0; agot[j]=0; mop[j]=0; mno[j]=0; mrv[j]=0; mka[j]=0; norm(j) }
inline a_fail(j) { if :: PLIVE(j) && pst[j]==P_RUN -> tfl[j]=1 :: else fi; a_close(j) }
#if MUT==4
#define GOT(j) (asent[j]==ALL)                /* seeded: all is sent */
#elif MUT==12
#define GOT(j) ((agot[j]|ack[0]|ack[1]|ack[2]|ack[NH]|ack[NH+1]|ack[NH+2])==ALL)   /* seeded: whatever the handle */
#elif MUT==13
#define GOT(j) (acks[j]>=LAYERS)              /* seeded: acknowledgements are counted, not pieces */
#else
#define GOT(j) (agot[j]==ALL)
#endif
inline a_send(j, i) { asent[j]=asent[j]|(1<<(i)); if :: BIT(bopen[j]|bend[j],ah[j]-1) && fr[F(j,ah[j]-1,i)]<2 -> fr[F(j,ah[j]-1,i)]++ :: else fi }
#define NEXT(j,i) (aup && ast[j]==A_OPEN && !BIT(asent[j],i))
proctype sender(byte j) {
end: do
#if MUT==7
  :: atomic { aup && ast[j]==A_NONE && (ring[j]==T_PENDING || ring[j]==T_SENT) && PLIVE(j) -> ast[j]=A_ASKED; if :: bup -> mlo[j]=1 :: else fi }
#else
  :: atomic { aup && ast[j]==A_NONE && ring[j]==T_PENDING && PLIVE(j) -> ast[j]=A_ASKED; if :: bup -> mlo[j]=1 :: else fi }
  :: atomic { ast[j]==A_NONE && ring[j]==T_SENT && PLIVE(j) -> ast[j]=A_MARKED }
#endif
  :: atomic { ast[j]==A_ASKED && mop[j]!=0 && !cut -> ah[j]=mop[j]; mop[j]=0; ast[j]=A_OPEN;
#if MUT!=15
        asent[j]=0; agot[j]=0
#endif
        }
  :: atomic { ast[j]==A_ASKED && mno[j] && !cut -> a_fail(j) }
  :: atomic { NEXT(j,0) -> a_send(j, 0) }
#if LAYERS==2
  :: atomic { NEXT(j,1) -> a_send(j, 1) }
#endif
  :: atomic { ast[j]==A_OPEN && ack[j*NH+ah[j]-1]!=0 -> agot[j]=agot[j]|ack[j*NH+ah[j]-1]; ack[j*NH+ah[j]-1]=0 }
  /* nothing reads P's block any more, then the mark */
  :: atomic { ast[j]==A_OPEN && GOT(j) ->
#if MUT==31 || MUT==32
        forget(j);                            /* nothing that is under way reads P's block any more */
#endif
        if :: ring[j]==T_PENDING -> ring[j]=T_SENT; ast[j]=A_MARKED; ah[j]=0; asent[j]=0; agot[j]=0 :: else -> a_close(j) fi }
  :: atomic { (ast[j]==A_ASKED || ast[j]==A_OPEN) && ring[j]!=T_PENDING -> a_close(j) }
  :: atomic { ast[j]==A_MARKED && aup && PLIVE(j) -> if :: bup -> mkr[j]=1 :: else fi; ast[j]=A_POSTED }
  :: atomic { ast[j]==A_POSTED && mka[j] && (!cut || MUT==18) -> if :: PLIVE(j) && pst[j]==P_RUN -> kvs[j]=1 :: else fi; a_close(j) }
  :: atomic { ast[j]!=A_NONE && ast[j]!=A_CLOSED && mrv[j] && !cut -> a_fail(j) }
  :: atomic { ast[j]!=A_NONE && ast[j]!=A_CLOSED && !PLIVE(j) -> if :: ast[j]==A_MARKED && SYNC -> mkr[j]=1 :: else fi; a_close(j) }
  :: atomic { ast[j]!=A_NONE && ast[j]!=A_CLOSED && pn[j]!=dn && (SYNC || !aup) -> a_fail(j) }       /* POOLS */
  od
}
#define EACH(v) for (v : 0 .. NJ-1)
inline a_down(v) {              /* the path ends; frames may still be under way */
    aup=0;
    EACH(v) { mop[v]=0; mno[v]=0; mrv[v]=0;
#if MUT!=18
        mka[v]=0;
#endif
        if :: ast[v]==A_NONE || ast[v]==A_CLOSED -> skip
#if AGAIN
           :: ast[v]==A_ASKED || ast[v]==A_OPEN -> ast[v]=A_NONE; ah[v]=0; asent[v]=0;
#if MUT!=15
                agot[v]=0
#endif
           :: ast[v]==A_MARKED || ast[v]==A_POSTED -> ast[v]=A_MARKED
#else
           :: else -> a_fail(v)
#endif
        fi };
    v=0
}

/* --- B ---- */
#if MUT==14
#define LOST(j,k) BIT(lost[j],k)
#else
#define LOST(j,k) 0
#endif
#define USED(j,k) (LOST(j,k) || BIT(bopen[j]|bend[j],k) || mop[j]==(k)+1 || ah[j]==(k)+1 || fr[F(j,k,0)] || fr[F(j,k,LAYERS-1)])
#if MUT==16 || MUT==17
#define MAYPASS(j) (bopen[j]==0)              /* seeded: a handle of the last link that is being closed is not looked at */
#elif MUT==5
#define MAYPASS(j) 1                          /* seeded: passed on, then closed */
#else
#define MAYPASS(j) BIDLE(j)
#endif
#if MUT==8
#define KNOWS(j) (bgot[j]==ALL)               /* seeded: unknown leases are refused */
#else
#define KNOWS(j) 1
#endif
#if RDMA || NOCHECK
#define COMPLETE(j) 1                         /* one-sided: B cannot tell */
#else
#define COMPLETE(j) (bgot[j]==ALL)
#endif
#if MUT==6 || MUT==14 || MUT==17 || MUT==30
#define CANOPEN(j) 1                          /* seeded: beside the handle of the last link */
#else
#define CANOPEN(j) BIDLE(j)
#endif
inline b_refuse(j) { mkr[j]=0; if :: SYNC -> mrv[j]=1 :: else fi; b_close(j) }
proctype receiver(byte j) {
  byte k;
end: do
  :: atomic { mlo[j] && bup && !cut && CANOPEN(j) && !basked[j] -> mlo[j]=0; basked[j]=1; lop[j]=lop[j]|(1<<bep) }
#if MUT==24
  :: atomic { BIT(lok[j],bep) && !brev[j] && CANOPEN(j) ->                 /* seeded: whether or not a question is pending */
#elif MUT==23
  :: atomic { basked[j] && BIT(lok[j],bep) && CANOPEN(j) ->                /* seeded: an overtaking revocation is forgotten */
#else
  :: atomic { basked[j] && BIT(lok[j],bep) && !brev[j] && CANOPEN(j) ->
#endif
        basked[j]=0; lok[j]=lok[j]&(255-(1<<bep)); lop[j]=lop[j]&(255-(1<<bep));
        k=0; do :: k<NH && USED(j,k) -> k++ :: else -> break od;
        assert(k<NH);
#if MUT==14
        lost[j]=lost[j]|bopen[j]; bopen[j]=0; /* seeded: the handle before is forgotten, not closed */
#endif
        bopen[j]=bopen[j]|(1<<k); bgot[j]=0; if :: SYNC -> mop[j]=k+1 :: else fi; k=0 }
  :: atomic { basked[j] && (BIT(lno[j],bep) || (BIT(lok[j],bep) && brev[j])) -> basked[j]=0; lno[j]=lno[j]&(255-(1<<bep)); lok[j]=lok[j]&(255-(1<<bep));
        lop[j]=lop[j]&(255-(1<<bep)); if :: SYNC -> mno[j]=1 :: else fi; norm(j) }
  /* KV_READY: closed, then passed on */
  :: atomic { mkr[j] && bup && !cut && bopen[j]!=0 && !COMPLETE(j) -> b_refuse(j) }
  :: atomic { mkr[j] && bup && !cut && bopen[j]!=0 && COMPLETE(j) && MUT!=5 -> b_close(j);
#if MUT==8
        bgot[j]=ALL
#endif
        }
#if MUT==8
  :: atomic { mkr[j] && bup && !cut && BIDLE(j) && !KNOWS(j) -> b_refuse(j) }
#endif
  :: atomic { mkr[j] && bup && !cut && MAYPASS(j) && KNOWS(j) && (COMPLETE(j) || bopen[j]==0) -> mkr[j]=0; kvr[j]=1; bpost[j]=1;
#if MUT==5
        late[j]=1
#endif
        }
#if MUT==5
  :: atomic { late[j] -> late[j]=0; b_close(j) }
#endif
  :: atomic { bpost[j] && kva[j] -> bpost[j]=0; kva[j]=0; if :: SYNC || MUT==18 -> mka[j]=1 :: else fi; norm(j) }
  /* a revocation */
#define REVOKE (BIT(rvk[j],bep) && !BIT(rak[j],bep))
#if MUT==2
  :: atomic { REVOKE -> bend[j]=bend[j]|bopen[j]; bopen[j]=0; rak[j]=rak[j]|(1<<bep); brev[j]=1; if :: SYNC -> mrv[j]=1 :: else fi }
#else
  :: atomic { REVOKE && bopen[j]!=0 -> b_close(j) }
  :: atomic { REVOKE && BIDLE(j) -> rak[j]=rak[j]|(1<<bep); brev[j]=1; if :: SYNC -> mrv[j]=1 :: else fi; norm(j) }
#endif
#if RDMA || MUT==2
  :: atomic { bend[j]!=0 -> bend[j]=0; if :: bopen[j]==0 -> forget(j) :: else fi; norm(j) }        /* invalidated, or the queue pair is drained */
#endif
  :: atomic { pn[j]!=dn && (bopen[j]!=0 || basked[j] || bpost[j]) -> basked[j]=0; bpost[j]=0; b_close(j); norm(j) }      /* D has ended */
  od
}
inline b_down(v) {
    bup=0;
    EACH(v) { mlo[v]=0; mkr[v]=0; basked[v]=0; bpost[v]=0;
#if MUT!=6 && MUT!=14
        b_close(v);
#endif
        norm(v) };
    v=0
}

/* --- faults ---- */
proctype env() {
  byte j;
  bit parted;
#if CUT
  byte cuts;
#endif
#if LINKD
  byte linkds;
#endif
#if PART
  byte parts;
#endif
end: do
  /* the control link */
  :: atomic { !aup && !cut -> b_down(j); EACH(j) { mlo[j]=0; mkr[j]=0 }; j=0; aup=1; bup=1 }
  :: atomic { aup && !bup -> a_down(j) }
#if DROP
  :: atomic { aup && drops<DROP && (cut || WRONG) -> drops++; a_down(j) }
  :: atomic { bup && drops<DROP && (cut || WRONG) -> drops++; b_down(j) }
#endif
#if PART
  :: atomic { !cut && parts<PART -> parts++; cut=1 }
  :: atomic { cut -> cut=0 }
#endif
#if CUT
  /* what A has no acknowledgement for is sent again */
  :: atomic { cuts<CUT && (ast[0]==A_OPEN || ast[1]==A_OPEN) -> cuts++;
#if RDMA && !OLDACK
        if :: EACH(j) { if :: ast[j]==A_OPEN -> agot[j]=agot[j]|ack[j*NH+ah[j]-1] :: else fi } :: skip fi;       /* completions: taken before more is posted, or lost */
        for (j : 0 .. NJ*NH-1) { ack[j]=0 };
#endif
        EACH(j) { if :: ast[j]==A_OPEN -> asent[j]=agot[j] :: else fi };
#if RDMA && MUT!=20 && MUT!=32
        for (j : 0 .. NF-1) { fr[j]=0 };          /* B's end of the queue pair is dead before another carries data */
#else
        if :: for (j : 0 .. NF-1) { fr[j]=0 }; rc[0]=0; rc[1]=0; rcx[0]=0; rcx[1]=0 :: skip fi;
#endif
#if !RDMA || OLDACK
        if :: for (j : 0 .. NJ*NH-1) { ack[j]=0 } :: skip fi;
#endif
        j=0 }
#endif
#if LINKD
  :: atomic { linkds<LINKD && (ast[0]==A_ASKED || ast[0]==A_POSTED || dst[0]==D_QUAR || ast[1]==A_ASKED || ast[1]==A_POSTED || dst[1]==D_QUAR) -> linkds++;
        EACH(j) { lop[j]=0; lok[j]=0; lno[j]=0; kvr[j]=0; kva[j]=0; rvk[j]=0; rak[j]=0;
            if :: dst[j]==D_QUAR && dw[j]==bep+1 -> rvk[j]=1<<bep :: else fi;
#if MUT!=25
            if :: bpost[j] -> kvr[j]=1 :: else fi;
#endif
#if MUT!=26
            if :: basked[j] -> lop[j]=1<<bep :: else fi
#endif
        };
        j=0 }
#endif
#if CRA
  :: atomic { crashes<CRALL && crashes<CRA -> crashes++; aup=0;
        EACH(j) { ast[j]=A_NONE; ah[j]=0; asent[j]=0; agot[j]=0; mop[j]=0; mno[j]=0; mrv[j]=0; if :: MUT==18 -> skip :: else -> mka[j]=0 fi };
        if :: EACH(j) { kvs[j]=0; tfl[j]=0 } :: skip fi; j=0 }
#endif
#if CRB
  :: atomic { crashes<CRALL && bep<CRB -> crashes++; bep++; bup=0;
        EACH(j) { bopen[j]=0; bend[j]=0; bgot[j]=0; basked[j]=0; brev[j]=0; bpost[j]=0; mlo[j]=0; mkr[j]=0;
#if MUT!=22 && MUT!=11
            forget(j)
#endif
        };
        if :: EACH(j) { kvr[j]=0; lop[j]=0; rak[j]=0 } :: skip fi; j=0 }
#endif
#if CRP
  :: atomic { crashes<CRALL && pep<CRP -> crashes++; pep++; pown=0; EACH(j) { kvs[j]=0; tfl[j]=0; if :: pst[j]!=P_NONE -> pst[j]=P_END :: else fi };
        if :: EACH(j) { cxq[j]=0; pfail[j]=0 } :: skip fi; j=0 }
#endif
#if CRD
  :: atomic { crashes<CRALL && dn<CRD -> crashes++; dn++; dbusy=0;
        for (j : 0 .. LAYERS*2-1) { dcont[j]=0 };
        EACH(j) { if :: pst[j]!=P_NONE || dst[j]!=D_NONE -> dst[j]=D_END :: else fi; dw[j]=0; dop[j]=0; lok[j]=0; lno[j]=0; rvk[j]=0; kva[j]=0 };
        if :: EACH(j) { fad[j]=0 } :: skip fi; j=0 }
#endif
  od
}

/* quiescence: nothing can move any more */
proctype monitor() {
  byte j;
  timeout -> atomic {
    for (j : 0 .. NJ-1) {
      if :: ATT2 && j==1 -> skip
         :: else ->
#if NEEDANS
            assert(rdone[j])                                          /* (e) strong: answered */
#else
            assert(rdone[j] || rfail[j])                              /* (e) ended */
#endif
      fi;
      assert(!PLIVE(j) || pst[j]==P_NONE || pst[j]==P_END);           /* (c) */
      assert(ast[j]==A_NONE || ast[j]==A_CLOSED);
      assert(dst[j]==D_NONE || dst[j]==D_END);
      assert(bopen[j]==0 && bend[j]==0 && !basked[j] && !bpost[j])
    };
    assert(pown==0 && dbusy==0 && aup && bup)
  }
}

init {
  byte i;
  atomic {
    for (i : 0 .. NJ-1) { run prefill(i); run decode(i); run sender(i); run receiver(i) };
#if RDMA
    for (i : 0 .. NF-1) { run card(i) };
#else
    for (i : 0 .. NF-1) { run wire(i) };
    run receive(0); run receive(1);
#endif
    run env(); run monitor(); i=0
  }
}
